"""``doctor -- COMMAND``: which sglang is asked about a command, and what its answer becomes.

What a release makes of it is in ``tests/releases/test_asking.py``.
"""

import json
import re
import socket
import sys
import venv
from pathlib import Path

import pytest
from throwaway import PUBLISHING, Throwaway

from sglang_perf_patches.cli.ask import hub

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
    add(parser)
    given = parser.parse_args(words)
    print("chatter of the release")
    check(given)
    return ServerArgs(given.tp_size)

def add(parser):
    pass

def check(given):
    if given.tp_size == 3:
        raise ValueError("no three\\nprocesses")

"""
SERVER_ARGS += PUBLISHING
"""A test may define `add` and `check` again below it."""
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
        "1 patch will be live in this server. We know no fault of sglang 1.0.\n\nsglang 1.0 at "
    )
    assert "on no GPU" in plain.stdout
    assert "chatter" not in plain.stdout
    unmeasured = "Live, but no gain was measured in a similar set-up:\n  one.step: summary"
    assert unmeasured in plain.stdout
    assert "bench server -- COMMAND" in plain.stdout
    brief = answered(publishing, *LAUNCH)
    assert "two.policy" not in brief
    assert "Patches not listed: 1 opt-in, 1 not needed in this set-up (add --all)." in brief
    assert "all (the default: all except opt-in), on no GPU" in brief
    gated = " ".join(publishing.command(*every, "--tp", "4").stdout.split())
    assert gated.startswith("No patch will be live in this server. ")
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
    assert said.startswith("No patch will be live, because this server does not load them.")
    assert "sglang-perf-patches run COMMAND" in said.partition(" sglang 1.0 at ")[0]
    assert "bench server" not in said
    assert "STRICT" not in said
    under_run = answered(publishing, strict, "sglang-perf-patches", "run", *LAUNCH)
    assert under_run.startswith("1 patch will be live in this server. ")


def test_what_the_release_refuses_is_told_in_its_words(publishing: Throwaway) -> None:
    for words, said in (
        (("--tpp", "x"), "sglang 1.0 refuses this command: unrecognized arguments: --tpp x"),
        (("--tp", "3"), "sglang 1.0 refuses this command: ValueError: no three processes"),
        (("--help",), "this command prints something, and starts no server: leave --help out"),
    ):
        assert refused(publishing, *words) == said


def test_a_sglang_that_can_not_be_imported_is_one_sentence(publishing: Throwaway) -> None:
    publishing.put("sglang/srt/server_args.py", "raise RuntimeError('no such wheel')\n")
    said = "sglang 1.0 could not be asked: RuntimeError: no such wheel"
    assert refused(publishing) == said
    # If a busy machine needs most of the time for the first try, the second one comes too late.
    fails = f"open({str(publishing.site / 'tries')!r}, 'a')\nraise RuntimeError('no such wheel')\n"
    publishing.put("sglang/srt/server_args.py", fails)
    publishing.append("sitecustomize.py", LATE)
    assert refused(publishing) == said


def test_what_fails_without_the_compiler_is_asked_with_it(publishing: Throwaway) -> None:
    publishing.put("torch/__init__.py", "")
    publishing.put("torch/_dynamo.py", "class Guard:\n    number = 1\n")
    needs = "from torch._dynamo import Guard\nassert Guard.number == 1\n"
    publishing.put("sglang/srt/server_args.py", needs + SERVER_ARGS)
    said = answered(publishing, *LAUNCH, "--tp", "4")
    assert said.startswith("No patch will be live in this server. ")
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
        (["/gone/python", *LAUNCH[1:]], "`/gone/python` is not on this machine: this is the"),
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
        check = f"def check(given):\n    from {module} import check\n    check(1)\n"
        tries = publishing.site / f"tries of {module}"
        counting = f"open({str(tries)!r}, 'a').write('x')\n"
        publishing.put("sglang/srt/server_args.py", counting + SERVER_ARGS + check)
        assert refused(publishing).startswith(said), module
        # What was left out for speed may only be missing elsewhere.
        assert tries.read_text() == ("xx" if module == "other" else "x"), module


def test_arguments_of_dynamo_are_named_and_left_out(publishing: Throwaway) -> None:
    of_dynamo = (sys.executable, "-m", "dynamo.sglang", "--tp", "4", "--endpoint", "dyn://x")
    said = answered(publishing, *of_dynamo)
    assert "one.step: tensor parallelism is on" in said
    assert "Not asked: what sglang does not know: --endpoint dyn://x" in said


def test_devices_of_another_machine_are_not_asked_for(publishing: Throwaway) -> None:
    checks = """
def add(parser):
    parser.add_argument("--disaggregation-ib-device")
def check(given):
    import os
    folder = "/sys/class/infiniband"
    if not os.path.isdir(folder) or given.disaggregation_ib_device not in os.listdir(folder):
        raise RuntimeError("no such device")
"""
    publishing.put("sglang/srt/server_args.py", SERVER_ARGS + checks)
    if not Path("/sys/class/infiniband").is_dir():
        said = answered(publishing, *LAUNCH, "--disaggregation-ib-device", "mlx5_9")
        assert "whether the server's machine has mlx5_9" in said


def test_a_late_answer_is_one_sentence_and_no_second_try(publishing: Throwaway) -> None:
    """The limit is for all tries together, so a slow one is the last."""
    slow = (
        f"import time\nopen({str(publishing.site / 'tries')!r}, 'a').write('x')\ntime.sleep(999)\n"
    )
    publishing.put("sglang/srt/server_args.py", slow)
    limit = "from sglang_perf_patches.cli.verbs import asking\nasking._LIMIT_S = 2.0\n"
    publishing.append("sitecustomize.py", limit)
    # More seconds if it is busy.
    assert re.match(r"sglang 1.0 gave no answer in \d+ s", refused(publishing))
    tries = publishing.site / "tries"
    assert not tries.exists() or tries.read_text() == "x"  # none, if a busy machine took 2 s before


LATE = """
from sglang_perf_patches.cli.verbs import asking
from pathlib import Path
class Late(asking.worker.Child):
    def __init__(self, *given, limit_s, **more):
        is_second = Path(__file__).with_name("tries").exists()
        super().__init__(*given, limit_s=0.2 if is_second else limit_s, **more)
asking.worker.Child = Late
"""


def test_a_patch_of_the_argument_code_is_active_when_asked(publishing: Throwaway) -> None:
    """``one.step`` changes `Worker.step`, which these arguments need, as stock adds one only."""
    needs = (
        "def check(given):\n    from sglang.srt.a import Worker\n"
        "    if Worker().step(1) == 2:\n        raise ValueError('no such step')\n"
    )
    publishing.put("sglang/srt/server_args.py", SERVER_ARGS + needs)
    publishing.lend_plugin_loader("0.5.23")
    answered(publishing, *LAUNCH)
    off = publishing.command(*ASK, "SGLANG_PERF_PATCHES=none", *LAUNCH)
    assert off.returncode == 2
    assert "refuses this command: ValueError: no such step" in off.stderr


def test_a_torchvision_that_does_not_fit_torch_still_answers(publishing: Throwaway) -> None:
    """It raises when imported, as its operators are not defined."""
    publishing.put("torch/__init__.py", "from torch import library, ops\n")
    publishing.put("torch/ops.py", "def load_library(path):\n    raise OSError\n")
    define = "defined = set()\n\ndef define(name, schema):\n    defined.add(name)\n"
    publishing.put("torch/library.py", define)
    needs = "from torch import library\nassert 'torchvision::nms' in library.defined\n"
    publishing.put("torchvision/__init__.py", needs)
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
    takes = "def add(parser):\n    parser.add_argument('--device')\n"
    refuses = "    if given.device != 'cpu':\n        raise RuntimeError('no such device')\n"
    device = f"{takes}def check(given):\n{refuses}"
    publishing.put("sglang/srt/server_args.py", needs + SERVER_ARGS + device)
    for words in ((), ("--device", "mps")):
        done = publishing.command("doctor", "--", "SGLANG_USE_MLX=1", *LAUNCH, *words)
        assert done.returncode == 0, done.stderr
        assert ", on a Mac (assumed; no patch was ever tested on one)\n" in done.stdout
    for off in ((), ("SGLANG_USE_MLX=False",)):
        assert publishing.command(*ASK, *off, *LAUNCH).returncode == 2


HUB = """
class LocalEntryNotFoundError(Exception):
    pass
def fetch():
    try:
        raise LocalEntryNotFoundError
    except LocalEntryNotFoundError as error:
        raise OSError("We couldn't connect") from error
"""
FETCHES = """
def add(parser):
    parser.add_argument("--model-path")
def check(given):
    if given.model_path:
        import os, huggingface_hub.errors
        with open(os.environ["ASKED"], "a") as file:
            file.write(f"{os.environ.get('HF_HUB_OFFLINE')} ")
        huggingface_hub.errors.fetch()
"""
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
    publishing.put("sglang/srt/server_args.py", SERVER_ARGS + FETCHES)
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
