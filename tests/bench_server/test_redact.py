"""No secret and no path of a command, its environment or its server is in a result."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import Bench

from sglang_perf_patches import downloads
from sglang_perf_patches.bench_server import command, load, outcome, redact, sides
from sglang_perf_patches.bench_server.boot import Boot
from sglang_perf_patches.compat import source
from sglang_perf_patches.model import releases
from sglang_perf_patches.model.errors import OperatorError
from sglang_perf_patches.model.selection import parse

CANARY = "Zq7"


def results(
    words: list[str], *, model: str = "tiny", said: str = "it crashed", adds: str = "X=1"
) -> str:
    """JSON and terminal of a comparison with such a command, model, last line and side."""
    states = [
        {"id": "mlx.kv-arena", "state": "live", "ran": True},
        {"id": "mlx.last-row", "state": "failed", "reason": said},
    ]
    processes = [{"role": said, "patches": states}]
    boot = Boot(dict.fromkeys(outcome.FIGURES, 1.0), ((1,),), processes, model)
    whole = outcome.compared(
        [(boot, boot)] * 2,
        sides.described(None, adds, "none", ["serve"]),
        parse("none", {}),
        about={"command": redact.shown(words), "load": redact.shown(words)},
        stopped=f"turn 3, b: the server ended with 1: {redact.names(said)}",
    )
    return "\n".join([outcome.to_json(whole), outcome.to_text(whole)])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("serve --api-key k1 --port 1", "serve ... --port 1"),
        ("serve --api-key=k1 'a b'", "serve ..."),
        ("serve --admin-api-key k1 --tp 2", "serve ... --tp 2"),
        ("env HF_TOKEN=hf_1 DB=x serve", "env HF_TOKEN=... ... serve"),
        ("env SGLANG_USE_MLX=1 PYTHONUNBUFFERED=1 serve", None),
        ("env LDQX7ZK2M=1 LD_LIBRARY_PATH=/opt/me serve", "env ... LD_LIBRARY_PATH=... serve"),
        ("env CUDA_VISIBLE_DEVICES=0,1 serve", None),
        ("env SGLANG_API_KEY=1234 serve", "env SGLANG_API_KEY=... serve"),
        ("env SGLANG_X=aGVsbG8= aGVsbG8= serve", "env SGLANG_X=... ... serve"),
        ("env SGLANG_PERF_PATCHES=all,-mla,mlx.kv-arena serve", None),
        (
            "serve --tokenizer-path me/t --max-total-tokens 99",
            "serve --tokenizer-path t --max-total-tokens 99",
        ),
        ("serve --tokens k1 --enable-lora", "serve ... --enable-lora"),
        ("serve --enable-lora k1 --tp=2", "serve --enable-lora ... --tp=2"),
        ("serve --cuda-graph-bs 1 2 4 --dtype half --random-seed -1", None),
        ("serve --dtype k1 --tp k1", "serve --dtype ... --tp ..."),
        ("serve --lora-paths 1234 --dtype 5 auto", "serve --lora-paths ... --dtype ... auto"),
        ("serve --json-model-override-args '{\"layers\": 2}'", "serve ..."),
        ("sh -c 'HF_TOKEN=k1 serve --tp 2'", "sh -c HF_TOKEN=..."),
        (
            "/home/me/venv/bin/python3.11 -m sglang.launch_server --model-path /srv/me/Qwen3-8B/",
            "python3.11 -m sglang.launch_server --model-path Qwen3-8B",
        ),
        ("sglang serve --model-path Qwen/Qwen3-8B", "sglang serve --model-path Qwen3-8B"),
        ("serve --model-path hf_abcdefghijkl", "serve --model-path ..."),
        ("serve --model-path https://me:k1@host/m", "serve --model-path ..."),
    ],
)
def test_a_command_shows_known_flags_with_known_values(words: str, expected: str | None) -> None:
    assert redact.shown(shlex.split(words)) == (expected or words)


def test_the_default_load_is_shown_whole() -> None:
    tree = source.Tree(source.find(downloads.tree(releases.KNOWN[-1])))
    assert redact.HIDDEN not in redact.shown(load.of(tree, []).options)


@pytest.mark.parametrize(
    "words",
    [
        "env NCCL_CONF=PW-Zq7 SGLANG_WEIGHTS=https://h/m?sig=Zq7 serve",
        "serve --log https://hooks.slack.com/services/T000/B000/Zq7",
        "sh -c 'huggingface-cli login Zq7 && serve --tp 2'",
        "huggingface-cli login --token Zq7",
        "serve --lora-paths a=/srv/Zq7",
        'python -c \'os.environ["HF_TOKEN"] = "Zq7"\'',
        "bash -c 'export A=1; export HF_TOKEN=Zq7; serve --redis-password Zq7'",
        'serve --extra \'{"t": "Zq7"}\'',
        "serve --keep /home/Zq7/x --url http://h/Zq7 --dtype Zq7 --tp Zq7 --trust-remote-code",
        "/opt/Zq7/bin/python serve.py",
        "Zq7 serve",
    ],
)
def test_what_is_secret_is_in_no_result(words: str) -> None:
    assert CANARY not in results(shlex.split(words))


@pytest.mark.parametrize(
    ("adds", "shown"),
    [
        ("SGLANG_PROXY=http://b:Zq7@h --tp 2", "SGLANG_PROXY=... SGLANG_PERF_PATCHES=none --tp 2"),
        ("HF_TOKEN=Zq7 --pw Zq7", "HF_TOKEN=... SGLANG_PERF_PATCHES=none ..."),
        ("--model-path /home/Zq7/Qwen3-8B", "SGLANG_PERF_PATCHES=none --model-path Qwen3-8B"),
    ],
)
def test_nor_is_it_in_what_a_side_adds(adds: str, shown: str) -> None:
    text = results(["serve"], adds=adds)
    assert CANARY not in text
    assert f'"{shown}"' in text


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("Qwen/Qwen3-8B", "Qwen3-8B"),
        ("/home/Zq7/models/gpt-oss-20b/", "gpt-oss-20b"),
        ("https://bob:PW-Zq7@hub/m", "..."),
        ("s3://AKIAIOSFODNN7EXAMPLE:Zq7@bucket", "..."),
        ("https://hub/m?sig=Zq7", "..."),
        ("hf_Zq7abcdefghij", "..."),
        ("Zq7/wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY", "..."),
        (r"C:\Zq7\models", "..."),
        ("", ""),
    ],
)
def test_a_model_is_its_last_name(model: str, shown: str) -> None:
    assert redact.model_name(model) == shown
    assert CANARY not in results(["serve"], model=model)


def test_what_a_server_said_keeps_the_names_of_errors() -> None:
    said = "torch.OutOfMemoryError: CUDA out of memory for /home/bob/Zq7; see RuntimeError: Zq7"
    text = " ".join(results(["serve"], said=said).split())
    assert CANARY not in text
    assert "bob" not in text
    assert "ended with 1: torch.OutOfMemoryError, RuntimeError" in text
    assert redact.names("I know nothing of it") == "..."


_AROUND = (
    *("{}", "-p{}", "--pw={}", "-ubob:{}", "bob:{}@host", "hf_{}", "AKIAIOSFODNN7EXAMPLE:{}"),
    *("https://bob:{}@hub/m", "https://hub/m?sig={}", "SGLANG_PROXY={}", "NCCL_X={}", "{}=1"),
    *("--api-key={}", "--tp={}", "--dtype={}", '{{"k": "{}"}}', "X-Key: {}", "/home/{}/Qwen3-8B"),
    *("SGLANG_PERF_PATCHES={}", "--model-path=/srv/{}/Qwen3-8B", "--model=s3://{}@b/m", "--{}"),
)
_BEFORE = (
    *("serve", "--pw", "--tp", "--dtype", "--trust-remote-code", "-p", "-u", "-c", "login", "--b"),
    *("--api-key", "--port", "--served-model-name", "--keep", "-m", "env", "--", "sh"),
)
# What a word or a hidden place may hold; a secret is found again by what stands in its middle.
_SECRET = st.builds(lambda a, b: f"{a}{CANARY}{b}", st.text(max_size=12), st.text(max_size=12))


@given(
    secret=_SECRET,
    words=st.lists(st.tuples(st.sampled_from(_BEFORE), st.sampled_from(_AROUND)), max_size=4),
)
@settings(max_examples=300)
def test_no_secret_comes_through_anywhere(secret: str, words: list[tuple[str, str]]) -> None:
    command = [word for before, around in words for word in (before, around.format(secret))]
    of_both = ("--api-key", "--port", "--host", "--ssl")  # which a side may not add
    added = [word for word in command if not word.startswith(of_both)]
    adds = shlex.join(["X=1", "--pw", *added])
    said = f"ValueError: {' '.join(command[1::2])} token {secret}"
    assert CANARY not in results(command, model=f"https://{secret}/m", said=said, adds=adds)


@given(digits=st.from_regex(r"[1-9]\d{9,15}", fullmatch=True), before=st.sampled_from(_BEFORE))
@settings(max_examples=100)
def test_nor_does_a_secret_of_digits(digits: str, before: str) -> None:
    text = results([before, digits, f"{before}={digits}"], said=f"token {digits}", model=digits)
    assert digits not in text


def test_a_variable_before_the_command_is_not_repeated() -> None:
    with pytest.raises(OperatorError, match="before a variable, put env") as refusal:
        command.parse(["HF_TOKEN=Zq7", "serve"])
    assert CANARY not in str(refusal.value)


def test_a_whole_run_shows_no_secret_and_no_path(bench: Bench, tmp_path: Path) -> None:
    """In JSON, then on the terminal: the command's, the environment's, the server's."""
    server = [
        *("env", "HF_TOKEN=hf-Zq7", "SGLANG_PROXY=http://bob:Zq7@h", "NCCL_CONF=Zq7"),
        *(sys.executable, "program.py", "--pids", str(bench.pids), "--port", str(bench.port)),
        *("--behaviour", "url-model,tell-environment", "--pw", "Zq7", "-ubob:Zq7"),
        *("--admin-api-key", "Zq7", "--model-path", "/home/Zq7/tiny"),
    ]
    ours = [sys.executable, "-m", "sglang_perf_patches", "bench", "server", "--turns", "2"]
    for more in (("--json",), ()):
        done = bench.run([*ours, *more, "--", *server], ONLY_HERE="Zq7-only")
        assert done.returncode == 1  # the fourth boot crashes
        text = done.stdout + done.stderr
        if more:
            data: Any = json.loads(done.stdout)
            assert data["stopped"].endswith("ended with 1: RuntimeError")
            assert data["model"] == "..."
            assert data["command"].endswith("--model-path tiny")
            for private in (str(tmp_path), str(bench.throwaway.site), sys.prefix):
                assert private not in done.stdout
        assert CANARY not in text
