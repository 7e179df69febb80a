"""``doctor -- COMMAND``: how a command is understood, and what is refused in one sentence.

What a release makes of it is in ``tests/releases/test_asking.py``.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from throwaway import PUBLISHING, Throwaway

from sglang_perf_patches.cli.ask import command, gpus, hub
from sglang_perf_patches.model.errors import OperatorError

LAUNCH = ("python", "-m", "sglang.launch_server")


@pytest.mark.parametrize(
    ("line", "changes", "under_run"),
    [
        ("python -m sglang.launch_server --model-path M --tp 4", {}, False),
        ("/opt/venv/bin/python3.12 -u -m sglang.launch_server --model-path M --tp 4", {}, False),
        ("python3 /src/python/sglang/launch_server.py --model-path M --tp 4", {}, False),
        ("sglang serve --model-path M --tp 4", {}, False),
        ("/opt/venv/bin/sglang serve M --tp 4", {}, False),
        ("sglang serve M --model-type llm --tp 4", {}, False),
        (
            "A=1 B=x=y python -m sglang.launch_server --model-path M --tp 4",
            {"A": "1", "B": "x=y"},
            False,
        ),
        ("env -u HOME A=1 sglang serve M --tp 4", {"A": "1", "HOME": None}, False),
        ("sglang-perf-patches run sglang serve M --tp 4", {}, True),
        (
            "A=1 sglang-perf-patches run -- env B=2 sglang serve M --tp 4",
            {"A": "1", "B": "2"},
            True,
        ),
        ("python -m sglang_perf_patches run sglang serve M --tp 4", {}, True),
        ("numactl --cpunodebind=0 --membind 0 nohup sglang serve M --tp 4", {}, False),
    ],
)
def test_a_command_is_understood_as_a_shell_would(
    line: str, changes: dict[str, str | None], under_run: bool
) -> None:
    before = {"HOME": "/root", "PATH": "/bin"}
    asked = command.read(line.split(), before)
    assert asked.arguments == ("--model-path", "M", "--tp", "4")
    after = {**before, **{name: value for name, value in changes.items() if value is not None}}
    after = {name: value for name, value in after.items() if changes.get(name, "") is not None}
    assert asked.environment == after
    assert asked.under_run == under_run


def test_an_empty_environment_is_empty() -> None:
    asked = command.read(["env", "-i", "A=1", *LAUNCH], {"HOME": "/root"})
    assert asked.environment == {"A": "1"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "a command is missing after --"),
        ("A=1", "a command is missing after --"),
        (
            "docker run --gpus all image python -m sglang.launch_server",
            "can't see which command `docker` starts",
        ),
        ("python serve.py --tp 4", "`python serve.py --tp 4` starts no sglang server"),
        ("python -m vllm.entrypoints.openai.api_server", "starts no sglang server"),
        ("sglang serve M --model-type diffusion", "the patches are for language models"),
        ("env --split-string=x sglang serve M", "is not supported here"),
    ],
)
def test_what_is_no_server_is_one_sentence(line: str, said: str) -> None:
    with pytest.raises(OperatorError, match=said.replace("(", r"\(")):
        command.read(line.split(), {})


@pytest.mark.parametrize(
    "words",
    [
        ("--tp-size", "4"),
        ("--page-size", "64"),
        ("--page-size", "1"),
        ("--disable-radix-cache",),
        ("--chunked-prefill-size", "8192"),
        ("--kv-cache-bytes", "1"),
        ("--max-running-requests", "4"),
        ("--sglang-path", "SITE", "--tp-size", "4"),
    ],
)
def test_an_option_of_a_server_alone_names_the_right_call(
    throwaway: Throwaway, words: tuple[str, ...]
) -> None:
    given = [str(throwaway.site) if word == "SITE" else word for word in words]
    done = throwaway.command("doctor", *given)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    option = next(word for word in words if word.startswith("--") and word != "--sglang-path")
    assert f"{option} needs --model DIR" in line
    assert "sglang-perf-patches doctor -- python -m sglang.launch_server" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("doctor", "--gpu", "H100"), "--gpu needs the server's command after --"),
        (("list", "--gpu", "H100"), "unrecognized arguments: --gpu H100"),
        (("doctor", "--gpu", "X1", "--", *LAUNCH), "--gpu X1 is unknown: give one of A100"),
        (("doctor", "--model", "M", "--", *LAUNCH), "exclude each other"),
        (("doctor", "--tp-size", "4", "--", *LAUNCH), "--tp-size needs --model DIR"),
        (("doctor", "--"), "a command is missing after --"),
        (("list", "--", *LAUNCH), "use sglang-perf-patches doctor -- COMMAND"),
        (("--", *LAUNCH), "use sglang-perf-patches doctor -- COMMAND"),
    ],
)
def test_bad_questions_are_exit_2(throwaway: Throwaway, words: tuple[str, ...], said: str) -> None:
    done = throwaway.command(*words)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert said in done.stderr


def test_a_sglang_that_can_not_be_imported_is_one_sentence(throwaway: Throwaway) -> None:
    throwaway.put("sglang/srt/server_args.py", "raise RuntimeError('no such wheel')\n")
    done = throwaway.command("doctor", "--gpu", "none", "--", *LAUNCH, "--model-path", "M")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert "sglang 1.0 could not be asked: " in line
    assert "no such wheel" in line


SERVER_ARGS = """
import argparse
from dataclasses import dataclass

@dataclass
class ServerArgs:
    tp_size: int = 1
    device: str = "cuda"

_published = None

def prepare_server_args(words):
    parser = argparse.ArgumentParser(prog="a server")
    parser.add_argument("--tp-size", "--tp", type=int, default=1)
    given = parser.parse_args(words)
    print("chatter of the release")
    if given.tp_size == 3:
        raise ValueError("no three\\nprocesses")
    return ServerArgs(given.tp_size)

"""
SERVER_ARGS += PUBLISHING
PROVEN = """
import dataclasses
import throwaway_patches as t
step = dataclasses.replace(t.STEP, proven_with={})
t.use(step, dataclasses.replace(t.TEN, only_with=("mlx",)), t.POLICY)
"""


@pytest.fixture
def publishing(throwaway: Throwaway) -> Throwaway:
    """A throwaway sglang that loads plugins and resolves arguments, and patches that mind."""
    throwaway.put("sglang/srt/plugins.py", "")
    throwaway.put("sitecustomize.py", PROVEN)
    throwaway.put("sglang/srt/server_args.py", SERVER_ARGS)
    return throwaway


def test_the_table_says_what_gates_and_what_is_not_needed(publishing: Throwaway) -> None:
    ask = ("doctor", "--gpu", "none", "--all", "--", *LAUNCH)
    plain = publishing.command(*ask)
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.startswith("1 live, 1 off (opt-in), 1 not needed\nsglang 1.0 at ")
    assert "on no GPU" in plain.stdout
    assert "chatter" not in plain.stdout
    assert "one.step: live" in plain.stdout
    assert "`live`: the patch will be on in this server" in plain.stdout
    assert "No known fault of sglang 1.0 on this server." in plain.stdout
    gated = publishing.command(*ask, "--tp", "4").stdout
    none = "No patch will be live in this server: "
    assert gated.startswith(f"{none}1 gated, 1 off (opt-in), 1 not needed\n")
    assert "`live`" not in gated
    assert "tensor parallelism is on (--tp-size): this patch was not tested with that" in gated
    assert "MLX is off (SGLANG_USE_MLX)" in gated
    data = json.loads(publishing.command(*ask[:3], "--json", *ask[3:], "--tp", "4").stdout)
    assert [each["state"] for each in data["patches"]] == ["gated", "not needed", "off (opt-in)"]


def test_what_is_named_and_gated_is_exit_1(publishing: Throwaway) -> None:
    ask = ("doctor", "--gpu", "none", "--")
    named = ("SGLANG_PERF_PATCHES=one.step", *LAUNCH)
    assert publishing.command(*ask, *named).returncode == 0
    done = publishing.command(*ask, *named, "--tp", "4")
    assert done.returncode == 1, done.stderr
    assert "with SGLANG_PERF_PATCHES=one.step" in done.stdout
    assert "STRICT" not in done.stdout
    strict = ("SGLANG_PERF_PATCHES_STRICT=1", *named)
    assert "no patch keeps this server from starting" in run_strictly(publishing, *ask, *strict)
    said = run_strictly(publishing, *ask, *strict, "--tp", "4")
    assert "this server would exit: one.step is gated: tensor parallelism is on" in said


def test_a_release_that_loads_no_plugin_has_nothing_live(publishing: Throwaway) -> None:
    (publishing.site / "sglang/srt/plugins.py").unlink()
    ask = ("doctor", "--gpu", "none", "--", "SGLANG_PERF_PATCHES_STRICT=1")
    done = publishing.command(*ask, *LAUNCH)
    assert done.stdout.startswith("No patch will be live: this server does not load them"), done
    assert "`live`: the patch will" not in done.stdout
    assert "STRICT" not in done.stdout
    under_run = publishing.command(*ask, "sglang-perf-patches", "run", *LAUNCH)
    assert under_run.stdout.startswith("1 live, ")


def run_strictly(publishing: Throwaway, *words: str) -> str:
    return " ".join(publishing.command(*words).stdout.split())


def test_what_the_release_refuses_is_told_in_its_words(publishing: Throwaway) -> None:
    ask = ("doctor", "--gpu", "none", "--", *LAUNCH)
    for words, said in (
        (("--tpp", "x"), "unrecognized arguments: --tpp x"),
        (("--tp", "3"), "ValueError: no three processes"),
    ):
        done = publishing.command(*ask, *words)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert done.stderr == f"sglang-perf-patches: sglang 1.0 refuses this command: {said}\n"


def test_what_fails_without_the_compiler_is_asked_with_it(publishing: Throwaway) -> None:
    publishing.put("torch/__init__.py", "")
    publishing.put("torch/_dynamo.py", "class Guard:\n    number = 1\n")
    needs = "from torch._dynamo import Guard\nassert Guard.number == 1\n"
    publishing.put("sglang/srt/server_args.py", needs + SERVER_ARGS)
    done = publishing.command("doctor", "--gpu", "none", "--", *LAUNCH, "--tp", "4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("No patch will be live in this server: 1 gated, ")


def test_another_environment_is_asked_by_this_package(throwaway: Throwaway, tmp_path: Path) -> None:
    """Beside its sglang are its own packages, which stay first, and another copy of ours."""
    other = Throwaway.write(tmp_path / "other")
    other.put("sglang_perf_patches/__init__.py", "raise RuntimeError('another copy')\n")
    for each in (throwaway, other):
        each.put("helper.py", f"SITE = {str(each.site)!r}\n")
    needs = f"import helper\nassert helper.SITE == {str(other.site)!r}\n"
    other.put("sglang/srt/server_args.py", needs + SERVER_ARGS)
    ask = ("doctor", "--sglang-path", str(other.site / "sglang"), "--gpu", "none")
    done = throwaway.command(*ask, "--", *LAUNCH)
    assert done.returncode == 0, done.stderr
    assert f"sglang 1.0 at {other.site / 'sglang'}" in done.stdout


def test_a_torchvision_that_does_not_fit_torch_still_answers(publishing: Throwaway) -> None:
    """It raises when imported, as its operators are not defined."""
    publishing.put("torch/__init__.py", "from torch import library, ops\n")
    publishing.put("torch/ops.py", "def load_library(path):\n    raise OSError\n")
    publishing.put(
        "torch/library.py",
        "defined = set()\n\ndef define(name, schema):\n    defined.add(name)\n",
    )
    publishing.put(
        "torchvision/__init__.py",
        "from torch import library\nassert 'torchvision::nms' in library.defined\n",
    )
    publishing.put("torchvision/_C.so", "")
    publishing.put("sglang/srt/server_args.py", "import torchvision\n" + SERVER_ARGS)
    done = publishing.command("doctor", "--gpu", "none", "--", *LAUNCH)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif("sys.platform == 'darwin'", reason="a Mac asks about itself")
def test_a_mac_can_be_asked_about_on_another_machine(publishing: Throwaway) -> None:
    publishing.put(
        "sglang/srt/hardware_backend/mlx/runtime.py",
        "def _validate_runtime():\n    raise RuntimeError('no Metal device')\n\n"
        "def use_mlx():\n    return _validate_runtime()\n",
    )
    needs = "from sglang.srt.hardware_backend.mlx.runtime import use_mlx\nuse_mlx()\n"
    publishing.put("sglang/srt/server_args.py", needs + SERVER_ARGS)
    done = publishing.command("doctor", "--", "SGLANG_USE_MLX=1", *LAUNCH)
    assert done.returncode == 0, done.stderr
    assert "\non a Mac, which SGLANG_USE_MLX=1 needs\n" in done.stdout
    for off in ((), ("SGLANG_USE_MLX=False",)):
        assert publishing.command("doctor", "--gpu", "none", "--", *off, *LAUNCH).returncode == 2


def test_what_this_python_lacks_is_named_with_what_to_run(publishing: Throwaway) -> None:
    publishing.put("sglang/srt/server_args.py", "import transformers_of_nobody\n" + SERVER_ARGS)
    done = publishing.command("doctor", "--gpu", "none", "--", *LAUNCH)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert "this Python has no transformers_of_nobody" in line
    assert "pip install sglang==1.0" in line


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--model-path", "Qwen/X", "--tp", "4"), ["Qwen/X"]),
        (("--tp=4", "--model-path=Qwen/X"), ["Qwen/X"]),
        (("--model", "Qwen/X", "--speculative-draft-model-path", "Qwen/D"), ["Qwen/X", "Qwen/D"]),
        (("--model-path", "tests", "--served-model-name", "Qwen/X"), []),
        (("--model-path", "/gone/X", "--tokenizer-path", "s3://a/b"), []),
        (("--model-path",), []),
        ((), []),
    ],
)
def test_models_on_the_hub_are_those_that_are_not_here(
    words: tuple[str, ...], named: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path)
    assert hub.models(words) == named


HUB = """
class LocalEntryNotFoundError(Exception):
    pass
def fetch():
    try:
        raise LocalEntryNotFoundError
    except LocalEntryNotFoundError as error:
        raise OSError("We couldn't connect") from error
"""
FETCHES = SERVER_ARGS.replace(
    "    given = parser.parse_args(words)",
    """    parser.add_argument("--model-path")
    given = parser.parse_args(words)
    if given.model_path:
        import os, huggingface_hub.errors
        with open(os.environ["ASKED"], "a") as file:
            file.write(f"{os.environ.get('HF_HUB_OFFLINE')} ")
        huggingface_hub.errors.fetch()""",
)
PROXIES = [f"{one}_proxy" for one in ("http", "https", "all")]


@pytest.mark.parametrize(
    ("is_up", "variables", "offline", "why"),
    [
        (False, {}, "1", "it can't be reached"),
        (True, {}, "None", "LocalEntryNotFoundError"),
        (False, {"HF_HUB_OFFLINE": "yes"}, "yes", "LocalEntryNotFoundError"),
        (False, {"http_proxy": "http://127.0.0.1:9"}, "None", "LocalEntryNotFoundError"),
    ],
)
def test_a_model_that_can_not_be_fetched_is_one_sentence(
    publishing: Throwaway, is_up: bool, variables: dict[str, str], offline: str, why: str
) -> None:
    """The release is asked once, and offline if the hub has no open port."""
    publishing.put("huggingface_hub/__init__.py", "")
    publishing.put("huggingface_hub/errors.py", HUB)
    publishing.put("sglang/srt/server_args.py", FETCHES)
    asked = publishing.site / "asked"
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # no other process can open this port
        if is_up:
            server.listen()
        environment = {
            **dict.fromkeys([*PROXIES, *map(str.upper, PROXIES), *hub._OTHERWISE]),
            "HF_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}",
            "ASKED": str(asked),
            **variables,
        }
        ask = ("doctor", "--gpu", "none", "--", *LAUNCH, "--model-path", "Qwen/X")
        done = publishing.command(*ask, **environment)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr == (
        f"sglang-perf-patches: can't fetch config.json of Qwen/X from 127.0.0.1 ({why}): instead "
        "of that name, give a folder that has the model's config.json\n"
    )
    assert asked.read_text().split() == [offline]


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (
            "NVIDIA L40, 46068, 8.9\nNVIDIA L40, 46068, 8.9",
            gpus.Gpu("NVIDIA L40", 46068, (8, 9), 2),
        ),
        ("NVIDIA L40, 46068, 8.9\nNVIDIA B200, 183359, 10.0", None),
        ("[Unknown Error]", None),
        ("", None),
    ],
)
def test_the_gpus_here_are_what_the_driver_lists(
    printed: str, expected: gpus.Gpu | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{printed}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert gpus.here() == expected
