"""``doctor -- COMMAND``: how a command, its models and the GPUs are read, and what is refused."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from throwaway import Throwaway

from sglang_perf_patches.cli.ask import command, gpus, hub
from sglang_perf_patches.model.errors import OperatorError

LAUNCH = (sys.executable, "-m", "sglang.launch_server")
PLAIN = """
python -m sglang.launch_server --model-path M --tp 4
/opt/venv/bin/python3.12 -u -m sglang.launch_server --model-path M --tp 4
python3 /src/python/sglang/launch_server.py --model-path M --tp 4
python3 -msglang.launch_server --model-path M --tp 4
python3 -um sglang.launch_server --model-path M --tp 4
python3 -X dev -Wignore -m sglang.launch_server --model-path M --tp 4
sglang serve --model-path M --tp 4
/opt/venv/bin/sglang serve M --tp 4
sglang serve M --model-type llm --tp 4
numactl --cpunodebind=0 --membind 0 nohup sglang serve M --tp 4
timeout -k 5 60 python3 -m sglang.launch_server --model-path M --tp 4
taskset -c 0-3 sglang serve M --tp 4
srun -N 1 --pty -n 1 sglang serve M --tp 4
bash -c 'exec sglang serve M --tp 4'
"""
RUN = "sglang-perf-patches run"
UNDER_RUN: dict[str, dict[str, str | None]] = {
    f"{RUN} sglang serve M --tp 4": {},
    f"A=1 {RUN} -- env B=2 sglang serve M --tp 4": {"A": "1", "B": "2"},
    "python -m sglang_perf_patches run sglang serve M --tp 4": {},
    f"sudo {RUN} sglang serve M --tp 4": {"SGLANG_A": None},
}
CHANGING: dict[str, dict[str, str | None]] = {
    "A=1 B=x=y python -m sglang.launch_server --model-path M --tp 4": {"A": "1", "B": "x=y"},
    "env -u HOME A=1 sglang serve M --tp 4": {"A": "1", "HOME": None},
    "env --unset=HOME -- sglang serve M --tp 4": {"HOME": None},
    "env -i A=1 sglang serve M --tp 4": {"A": "1", "HOME": None, "PATH": None, "SGLANG_A": None},
    # What replaces PYTHONPATH keeps our `run` out.
    f"{RUN} PYTHONPATH=/x sglang serve M --tp 4": {"PYTHONPATH": "/x"},
    f"{RUN} bash -c 'PYTHONPATH=/x; sglang serve M --tp 4'": {"PYTHONPATH": "/x"},
    f"{RUN} env -u PYTHONPATH sglang serve M --tp 4": {},
    f"{RUN} sudo sglang serve M --tp 4": {"SGLANG_A": None},
    "sudo -E -u sglang A=1 sglang serve M --tp 4": {"A": "1"},
    "sh -lc 'export A=1 B=$HOME/x; sglang serve M --tp 4 # x'": {"A": "1", "B": "/home/a/x"},
    "docker run --gpus all --name sglang --rm -it -p 30000:30000 -e A=1 -v /a:/b "
    "lmsysorg/sglang:latest sglang serve M --tp 4": {"A": "1", "SGLANG_A": None},
    "podman run -eA=1 --entrypoint sglang image serve M --tp 4": {"A": "1", "SGLANG_A": None},
    **UNDER_RUN,
}
"""Command → the variables that it changes."""


@pytest.mark.parametrize("line", [*PLAIN.strip().splitlines(), *CHANGING])
def test_a_command_is_understood_as_a_shell_would(line: str) -> None:
    before = {"HOME": "/home/a", "PATH": "/bin", "SGLANG_A": "1"}
    asked = command.parse(shlex.split(line), before)
    assert asked.arguments == ("--model-path", "M", "--tp", "4")
    after = {**before, **CHANGING.get(line, {})}
    assert asked.environment == {name: value for name, value in after.items() if value is not None}
    assert asked.under_run == (line in UNDER_RUN)


@pytest.mark.parametrize(
    ("line", "ignored"),
    [
        ("sglang serve M --tp 4 '2>&1' '|' tee log", ["2>&1 | tee log"]),
        ("sglang serve M --tp 4 '>' log '&'", ["> log &"]),
        ("sglang serve M '&>>log' --tp 4 ';' sleep 1", ["&>>log ; sleep 1"]),
        ("sglang serve M --tp 4 '#' comment", ["# comment"]),
        ("bash -c 'sglang serve M --tp 4 2>&1 | tee log'", ["tee log"]),
        ("bash -c 'nohup sglang serve M --tp 4 > /tmp/log 2>&1 &'", []),
        ("bash -c 'cd /x && sglang serve M \\\n --tp 4'", ["cd /x"]),
        ("sh -ec 'ulimit -n 9\nsglang serve M --tp 4\nsleep 1'", ["ulimit -n 9", "sleep 1"]),
        ("sglang serve M --tp 4", []),
    ],
)
def test_what_the_shell_takes_is_no_argument(line: str, ignored: list[str]) -> None:
    words = shlex.split(line.replace("\\n", "\n"))
    asked = command.parse(words, {})
    assert asked.arguments == ("--model-path", "M", "--tp", "4")
    assert list(asked.ignored) == ignored


@pytest.mark.parametrize("value", ["<think>", '{"a": "b > c | d"}', "a;b", "a&b", "x#y", "a|b"])
def test_a_value_that_looks_like_a_shell_s_stays(value: str) -> None:
    assert command.parse([*LAUNCH, "--x", value], {}).arguments == ("--x", value)
    script = f"{shlex.join([*LAUNCH, '--x', value])} > log"
    assert command.parse(["bash", "-c", script], {}).arguments == ("--x", value)


@pytest.mark.parametrize(
    ("line", "python", "elsewhere"),
    [
        ("/venv/bin/python3.12 -u -m sglang.launch_server", ("/venv/bin/python3.12", "-u"), ""),
        ("nohup python -Im sglang.launch_server", ("python", "-I"), ""),
        ("sglang serve M", ("sglang",), ""),
        ("docker run -it image:v1 sglang serve M", ("sglang",), "the image image:v1"),
        ("docker exec -it -w /x box sglang serve M", ("sglang",), "the container box"),
        ("srun --container-image=i python -m sglang.launch_server", ("python",), "the image i"),
        ("uv run --with sglang==0.5.11 sglang serve", ("sglang",), "an environment that uv makes"),
    ],
)
def test_the_python_of_a_command(line: str, python: tuple[str, ...], elsewhere: str) -> None:
    asked = command.parse(line.split(), {})
    assert (asked.python, asked.elsewhere) == (python, elsewhere)


def test_uv_and_source_choose_a_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    asked = command.parse(["uv", "run", *LAUNCH], {"PATH": "/bin"})
    assert asked.environment["PATH"] == f"{tmp_path}/.venv/bin:/bin"
    script = "source /v/bin/activate && sglang serve M"
    asked = command.parse(["bash", "-c", script], {"PATH": "/bin"})
    assert asked.environment["PATH"] == "/v/bin:/bin"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "a command is missing after --"),
        ("A=1", "a command is missing after --"),
        ("docker run --gpus all image", "a command is missing after --"),
        ("docker compose up", "can't see which command `docker` starts in its container"),
        ("docker run image --model-path M", "can't see which command `--model-path` starts"),
        ("numactl -C 0 torchrun -m sglang.launch_server", "which command `torchrun` starts"),
        ("numactl -C 0 torchrun python -m sglang.launch_server", "command `torchrun` starts"),
        ("bash start.sh", "can't see which command `bash` starts"),
        ("bash -c true", "can't see which command `true` starts"),
        ("python -c pass -m sglang.launch_server", "starts no sglang server"),
        ("python serve.py --tp 4", "`python serve.py --tp 4` starts no sglang server"),
        ("python -m vllm.entrypoints.openai.api_server", "starts no sglang server"),
        ("sglang serve M --model-type diffusion", "the patches are for language models"),
        ("env --split-string=x sglang serve M", "is not supported here"),
    ],
)
def test_what_is_no_server_is_one_sentence(line: str, said: str) -> None:
    with pytest.raises(OperatorError, match=said.replace("(", r"\(")):
        command.parse(line.split(), {})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("doctor", "--gpu", "H100"), "--gpu needs the server's command after --"),
        (("list", "--gpu", "H100"), "unrecognized arguments: --gpu H100"),
        (("doctor", "--gpu", "X1", "--", *LAUNCH), "--gpu X1 is unknown: give one of A100"),
        (("doctor", "--tp-size", "4"), "--tp-size 4: put `--` before the command, as in "),
        (("doctor", *LAUNCH), "put `--` before the command, as in sglang-perf-patches doctor --"),
        (("doctor", "--"), "a command is missing after --"),
        (("list", "--", *LAUNCH), "use sglang-perf-patches doctor -- COMMAND"),
        (("--", *LAUNCH), "use sglang-perf-patches doctor -- COMMAND"),
        (("bench", "server", *LAUNCH), "put `--` before the server's command"),
        (LAUNCH, "for a server's command: sglang-perf-patches doctor -- COMMAND"),
        (("list", *LAUNCH), "for a server's command: sglang-perf-patches doctor -- COMMAND"),
    ],
)
def test_bad_questions_are_exit_2(throwaway: Throwaway, words: tuple[str, ...], said: str) -> None:
    done = throwaway.command(*words)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert said in done.stderr


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
        (("--config", "server.yaml"), ["Qwen/Y"]),
        (("--config=server.yaml", "--tp=4"), ["Qwen/Y"]),
    ],
)
def test_models_on_the_hub_are_those_that_are_not_here(
    words: tuple[str, ...], named: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "server.yaml").write_text("tp-size: 4\nmodel-path: 'Qwen/Y'  # a model\n")
    monkeypatch.chdir(tmp_path)
    assert hub.models(words) == named


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (
            "NVIDIA L40, 46068, 8.9\nNVIDIA L40, 46068, 8.9",
            gpus.Gpu("NVIDIA L40", 46068, (8, 9), 2),
        ),
        ("NVIDIA GH200 480GB, [N/A], 9.0", gpus.Gpu("NVIDIA GH200 480GB", 97871, (9, 0), 1)),
        ("NVIDIA L40, 46068, 8.9\nNVIDIA B200, 183359, 10.0", "has NVIDIA B200 and NVIDIA L40: "),
        ("NVIDIA GB999, [N/A], 12.1", "gives no memory for NVIDIA GB999 ([N/A]): "),
        ("[Unknown Error]", None),
        ("", None),
    ],
)
def test_the_gpus_here_are_what_the_driver_lists(
    printed: str, expected: gpus.Gpu | str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{printed}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    if isinstance(expected, str):
        with pytest.raises(OperatorError, match=re.escape(expected)):
            gpus.here()
    else:
        assert gpus.here() == expected


def test_a_gpu_is_known_by_its_name() -> None:
    found = [gpus.named(name) for name in ("b300", "GB200", "RTX 5090", "MI300")]
    assert [gpu and gpu.memory for gpu in found] == [275040, 189471, 32607, 196592]
    assert [gpu and gpu.capability for gpu in found] == [(10, 3), (10, 0), (12, 0), (9, 4)]
