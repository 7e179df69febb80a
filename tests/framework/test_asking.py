"""``doctor -- COMMAND``: how a command is understood, and what is refused in one sentence.

What a release makes of it is in ``tests/releases/test_asking.py``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import sys
import venv
from pathlib import Path

import pytest
from throwaway import PUBLISHING, Throwaway

from sglang_perf_patches.cli.ask import command, gpus, hub
from sglang_perf_patches.model.errors import OperatorError

LAUNCH = (sys.executable, "-m", "sglang.launch_server")
ASK = ("doctor", "--gpu", "none", "--")


def refused(throwaway: Throwaway, *words: str, **variables: str) -> str:
    """The one sentence with which a launch command is refused, exit code 2."""
    done = throwaway.command(*ASK, *LAUNCH, *words, **variables)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    return line.removeprefix("sglang-perf-patches: ")


def answered(throwaway: Throwaway, *words: str) -> str:
    """The answer about a command, exit code 0, without line breaks."""
    done = throwaway.command(*ASK, *words)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


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
def test_the_python_of_a_command_is_known(
    line: str, python: tuple[str, ...], elsewhere: str
) -> None:
    asked = command.parse(line.split(), {})
    assert (asked.python, asked.elsewhere) == (python, elsewhere)


def test_uv_and_a_sourced_script_choose_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    asked = command.parse(["uv", "run", *LAUNCH], {"PATH": "/bin"})
    assert asked.environment["PATH"] == f"{tmp_path}/.venv/bin:/bin"
    script = "source /v/bin/activate && sglang serve M"
    asked = command.parse(["bash", "-c", script], {"PATH": "/bin"})
    assert asked.environment["PATH"] == "/v/bin:/bin"


def test_an_empty_environment_is_empty() -> None:
    asked = command.parse(["env", "-i", "A=1", *LAUNCH], {"HOME": "/home/a"})
    assert asked.environment == {"A": "1"}


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


def test_a_sglang_that_can_not_be_imported_is_one_sentence(throwaway: Throwaway) -> None:
    throwaway.put("sglang/srt/server_args.py", "raise RuntimeError('no such wheel')\n")
    said = "sglang 1.0 could not be asked: RuntimeError: no such wheel"
    assert refused(throwaway, "--model-path", "M") == said


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
    publishing.lend_plugin_loader("0.5.23")
    every = ("doctor", "--gpu", "none", "--all", "--", *LAUNCH)
    plain = publishing.command(*every)
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.startswith(
        "1 patch will be live in this server; of the faults of sglang 1.0 that we know,\nit "
        "will have none.\n\n"
        "sglang 1.0 at "
    )
    assert "on no GPU" in plain.stdout
    assert "chatter" not in plain.stdout
    assert "Live, with no gain measured for this set-up:\n  one.step: summary" in plain.stdout
    assert "bench server -- COMMAND" in plain.stdout
    brief = answered(publishing, *LAUNCH)
    assert "two.policy" not in brief
    assert "turns no patch off. Not listed: 1 opt-in, 1 not needed (add --all)." in brief
    assert "all (the default), on no GPU" in brief
    gated = " ".join(publishing.command(*every, "--tp", "4").stdout.split())
    assert gated.startswith("No patch will be live in this server; ")
    assert "bench server" not in gated
    assert "turns no patch off" not in gated
    words = "tensor parallelism is on (--tp-size): this patch was not tested with that"
    assert f"Turned off by this set-up: one.step: {words}" in gated
    assert "MLX is off (SGLANG_USE_MLX)" in gated
    data = json.loads(publishing.command(*ASK[:-1], "--json", "--", *LAUNCH, "--tp", "4").stdout)
    assert [each["state"] for each in data["patches"]] == ["gated", "not needed", "off (opt-in)"]


def test_what_is_named_and_gated_is_exit_1(publishing: Throwaway) -> None:
    named = ("SGLANG_PERF_PATCHES=one.step", *LAUNCH)
    answered(publishing, *named)
    done = publishing.command(*ASK, *named, "--tp", "4")
    assert done.returncode == 1, done.stderr
    assert "with SGLANG_PERF_PATCHES=one.step, on" in done.stdout
    assert "STRICT" not in done.stdout
    strict = ("SGLANG_PERF_PATCHES_STRICT=1", *named)
    assert "no patch keeps this server from starting" in answered(publishing, *strict)
    said = " ".join(publishing.command(*ASK, *strict, "--tp", "4").stdout.split())
    assert "this server would exit: one.step is gated: tensor parallelism is on" in said


def test_a_release_that_loads_no_plugin_has_nothing_live(publishing: Throwaway) -> None:
    (publishing.site / "sglang/srt/plugins.py").unlink()
    strict = "SGLANG_PERF_PATCHES_STRICT=1"
    said = answered(publishing, strict, *LAUNCH)
    assert said.startswith("No patch will be live, because this server does not load them;")
    assert "sglang-perf-patches run COMMAND" in said.partition(" sglang 1.0 at ")[0]
    assert "bench server" not in said
    assert "STRICT" not in said
    under_run = answered(publishing, strict, "sglang-perf-patches", "run", *LAUNCH)
    assert under_run.startswith("1 patch will be live in this server; ")


def test_what_the_release_refuses_is_told_in_its_words(publishing: Throwaway) -> None:
    for words, said in (
        (("--tpp", "x"), "sglang 1.0 refuses this command: unrecognized arguments: --tpp x"),
        (("--tp", "3"), "sglang 1.0 refuses this command: ValueError: no three processes"),
        (("--help",), "this command prints something, and starts no server: leave --help out"),
    ):
        assert refused(publishing, *words) == said


def test_what_fails_without_the_compiler_is_asked_with_it(publishing: Throwaway) -> None:
    publishing.put("torch/__init__.py", "")
    publishing.put("torch/_dynamo.py", "class Guard:\n    number = 1\n")
    needs = "from torch._dynamo import Guard\nassert Guard.number == 1\n"
    publishing.put("sglang/srt/server_args.py", needs + SERVER_ARGS)
    said = answered(publishing, *LAUNCH, "--tp", "4")
    assert said.startswith("No patch will be live in this server; ")
    assert "Turned off by this set-up: one.step: " in said


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


@pytest.fixture
def another(throwaway: Throwaway, tmp_path: Path) -> Path:
    """A Python of its own that has a release 2.0 of the throwaway sglang, and nothing of ours."""
    folder = tmp_path / "another"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    other = Throwaway.write(tmp_path / "other")
    other.put("sglang/srt/server_args.py", SERVER_ARGS)
    other.put("sglang/version.py", '__version__ = "2.0"\n')
    (other.site / "sglang").rename(site / "sglang")
    throwaway.put("sitecustomize.py", PROVEN)
    script = folder / "bin" / "sglang"
    script.write_text(f"#!{folder}/bin/python\n")
    script.chmod(0o755)
    return folder


def ask_about(throwaway: Throwaway, *words: str, path: str = "/usr/bin") -> tuple[int, str]:
    """Exit code and text, from a Python with sglang 1.0, about a command without PYTHONPATH."""
    front = ("env", "-u", "PYTHONPATH", f"PATH={path}")
    done = throwaway.command(*ASK, *front, *words)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_the_sglang_of_the_command_s_python_is_asked(throwaway: Throwaway, another: Path) -> None:
    typed = (
        [str(another / "bin/python"), *LAUNCH[1:]],
        ["python", *LAUNCH[1:]],
        ["sglang", "serve"],
    )
    for words in typed:
        code, said = ask_about(throwaway, *words, path=f"{another}/bin:/usr/bin")
        assert code == 0, said
        assert "sglang 2.0 at" in said
        assert "can't import sglang_perf_patches: install it next to its sglang." in said
        assert "this is the answer" not in said


def test_a_python_that_is_not_here_is_named_and_this_one_is_asked(throwaway: Throwaway) -> None:
    throwaway.put("sitecustomize.py", PROVEN)
    throwaway.put("sglang/srt/server_args.py", SERVER_ARGS)
    for words, why in (
        (
            ["/gone/python", *LAUNCH[1:]],
            "`/gone/python` is not on this machine: this is the answer",
        ),
        (LAUNCH, f"The command's Python, {sys.executable}, has no sglang: this is"),
        (["docker", "run", "i:v9.9.9", *LAUNCH], "The command runs in the image i:v9.9.9: this is"),
    ):
        code, said = ask_about(throwaway, *words)
        assert code == 0, said
        assert "sglang 1.0 at" in said
        assert why in said
        assert "name another one with --sglang-version or --sglang-path." in said
    code, said = ask_about(throwaway, "docker", "run", "i:v0.5.11-cu129", *LAUNCH)
    assert code == 2
    assert "has sglang 0.5.11, and this Python has 1.0: add --sglang-version 0.5.11" in said


def test_only_the_release_s_own_code_refuses(publishing: Throwaway) -> None:
    own = "def check(x):\n    raise ValueError('not two')\n"
    publishing.put("sglang/srt/checks.py", own)
    publishing.put("transformers/__init__.py", own.replace("not two", "no such model"))
    publishing.put("other/__init__.py", own)
    lacks = (
        f"{sys.executable} has no aiter, which sglang 1.0 needs to read the command: run this in "
        "an environment with sglang 1.0 (pip install sglang==1.0)"
    )
    for module, said in (
        ("sglang.srt.checks", "sglang 1.0 refuses this command: ValueError: not two"),
        ("other", "sglang 1.0 could not be asked: ValueError: not two"),
        ("transformers", "sglang 1.0 could not be asked with transformers of this Python of "),
        ("aiter", lacks),
    ):
        given = f"    from {module} import check\n    check(1)\n"
        text = SERVER_ARGS.replace("    if given.tp_size == 3:\n", given + "    if False:\n")
        tries = publishing.site / f"tries of {module}"
        counting = f"open({str(tries)!r}, 'a').write('x')\n"
        publishing.put("sglang/srt/server_args.py", counting + text)
        assert refused(publishing).startswith(said), module
        # What was left out for speed may only be missing elsewhere.
        assert tries.read_text() == ("xx" if module == "other" else "x"), module


def test_arguments_of_dynamo_are_named_and_left_out(publishing: Throwaway) -> None:
    of_dynamo = (sys.executable, "-m", "dynamo.sglang", "--tp", "4", "--endpoint", "dyn://x")
    said = answered(publishing, *of_dynamo)
    assert "one.step: tensor parallelism is on" in said
    assert "Not asked: what sglang does not know: --endpoint dyn://x" in said


def test_devices_of_another_machine_are_not_asked_for(publishing: Throwaway) -> None:
    text = SERVER_ARGS.replace(
        "    given = parser.parse_args(words)",
        """    parser.add_argument("--disaggregation-ib-device")
    given = parser.parse_args(words)
    import os
    folder = "/sys/class/infiniband"
    if not os.path.isdir(folder) or given.disaggregation_ib_device not in os.listdir(folder):
        raise RuntimeError("no such device")""",
    )
    publishing.put("sglang/srt/server_args.py", text)
    if not Path("/sys/class/infiniband").is_dir():
        said = answered(publishing, *LAUNCH, "--disaggregation-ib-device", "mlx5_9")
        assert "whether the server's machine has mlx5_9" in said


def test_a_late_answer_is_one_sentence_and_no_second_try(publishing: Throwaway) -> None:
    """The limit is for all tries together, so a slow one is the last."""
    slow = (
        f"import time\nopen({str(publishing.site / 'tries')!r}, 'a').write('x')\ntime.sleep(999)\n"
    )
    publishing.put("sglang/srt/server_args.py", slow)
    patched = PROVEN + "from sglang_perf_patches.cli.ask import answer\nanswer._LIMIT_S = 2.0\n"
    publishing.put("sitecustomize.py", patched)
    # More seconds if it is busy.
    assert re.match(r"sglang 1.0 gave no answer in \d+ s", refused(publishing))
    tries = publishing.site / "tries"
    assert not tries.exists() or tries.read_text() == "x"  # none, if a busy machine took 2 s before


LATE = """
from sglang_perf_patches.cli.ask import answer
from pathlib import Path
class Late(answer.worker.Child):
    def __init__(self, *given, limit_s, **more):
        is_second = Path(__file__).with_name("tries").exists()
        super().__init__(*given, limit_s=0.2 if is_second else limit_s, **more)
answer.worker.Child = Late
"""


def test_a_late_second_try_leaves_the_failure_of_the_first(publishing: Throwaway) -> None:
    """A busy machine needs most of the time for the first one."""
    fails = f"open({str(publishing.site / 'tries')!r}, 'a')\nraise RuntimeError('no such wheel')\n"
    publishing.put("sglang/srt/server_args.py", fails)
    publishing.put("sitecustomize.py", PROVEN + LATE)
    assert refused(publishing) == "sglang 1.0 could not be asked: RuntimeError: no such wheel"


def test_a_patch_of_the_argument_code_is_active_when_the_release_is_asked(
    publishing: Throwaway,
) -> None:
    """``one.step`` changes `Worker.step`, which these arguments need, as stock adds one only."""
    needs = "    from sglang.srt.a import Worker\n    if Worker().step(1) == 2:\n"
    text = SERVER_ARGS.replace("    if given.tp_size == 3:\n", needs)
    publishing.put("sglang/srt/server_args.py", text)
    publishing.lend_plugin_loader("0.5.23")
    answered(publishing, *LAUNCH)
    off = publishing.command(*ASK, "SGLANG_PERF_PATCHES=none", *LAUNCH)
    assert off.returncode == 2
    assert "refuses this command: ValueError: no three processes" in off.stderr


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
    answered(publishing, *LAUNCH)


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
    assert ", on a Mac (no patch was ever tested on one)\n" in done.stdout
    for off in ((), ("SGLANG_USE_MLX=False",)):
        assert publishing.command(*ASK, *off, *LAUNCH).returncode == 2


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
        assert refused(publishing, "--model-path", "Qwen/X", **environment) == (
            f"can't fetch config.json of Qwen/X from 127.0.0.1 ({why}): instead of that name, give "
            "a folder that has the model's config.json"
        )
    assert asked.read_text().split() == [offline]


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


@pytest.mark.parametrize(
    ("name", "memory", "capability"),
    [
        ("b300", 275040, (10, 3)),
        ("GB200", 189471, (10, 0)),
        ("RTX 5090", 32607, (12, 0)),
        ("MI300", 196592, (9, 4)),
    ],
)
def test_a_gpu_is_known_by_its_name(name: str, memory: int, capability: tuple[int, int]) -> None:
    gpu = gpus.named(name)
    assert gpu
    assert (gpu.memory, gpu.capability) == (memory, capability)
