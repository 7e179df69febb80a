"""``doctor``: what another sglang means for the patches."""

import json
import platform
import subprocess
import sys
import time
import venv
from importlib import metadata
from pathlib import Path

import pytest
from running import SERVE, ask, serving
from throwaway import PUBLISHING, Throwaway, change

from linux_mlx.patience import wait_for
from sglang_perf_patches import gpu
from sglang_perf_patches.model.feature import UNPROVEN

SETS = """
import throwaway_patches as t
gone = t.declare("two.gone", install="step", targets=(f"{t.B}:Caller.call",))
built = t.declare("two.built", install="step", targets=(f"{t.A}:helper",), built_in_since="2.0",
    markers=(t.Marker(definition=f"{t.A}:helper", contains="upstream"),))
t.use(t.STEP, t.POLICY, gone, built)
"""


@pytest.fixture
def other(throwaway: Throwaway) -> Path:
    """A tree to upgrade to, as yet the same as the installed one."""
    throwaway.put("sitecustomize.py", SETS)
    package = Throwaway.write(throwaway.site.parent / "other")
    package.put("sglang/version.py", '__version__ = "2.0"\n')
    return package.site / "sglang"


def knowing(tree: Path) -> str:
    """`SETS`, whose patches are known as another tree has them."""
    there = f"gone, built, tree=source.Tree(source.find({str(tree)!r})))"
    return "from sglang_perf_patches.compat import source" + SETS.replace("gone, built)", there)


def changes(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return {patch["id"]: patch["change"] for patch in json.loads(done.stdout)["patches"]}


def test_an_equal_tree_changes_nothing(throwaway: Throwaway, other: Path) -> None:
    done = throwaway.command("doctor", "--sglang-path", str(other), "--json")
    assert done.returncode == 0, done.stderr
    assert set(changes(done).values()) == {"same"}
    data = json.loads(done.stdout)
    assert (data["from"]["version"], data["to"]["version"]) == ("1.0", "2.0")
    assert data["lost"] == []


def test_each_change_is_named_and_a_lost_patch_is_exit_1(throwaway: Throwaway, other: Path) -> None:
    change(other)
    change(other, "return x * scale", "return x * scale  # upstream")
    (other / "srt" / "b.py").unlink()
    done = throwaway.command("doctor", "--sglang-path", str(other), "--json")
    assert done.returncode == 1
    ids = ("one.step", "two.policy", "two.gone", "two.built")
    assert changes(done) == dict(zip(ids, ("lost", "lost", "absent", "built-in"), strict=True))
    assert json.loads(done.stdout)["lost"] == ["one.step"]  # nobody chose the policy patch
    text = throwaway.command("doctor", "--sglang-path", str(other))
    lines = text.stdout.splitlines()
    assert lines[0] == ("chosen, and lost: one.step (2 lost, 1 built-in, 1 absent)")
    assert [line.split()[0] for line in lines if " applies " in line] == [*ids]
    without = throwaway.command("doctor", "--sglang-path", str(other), SGLANG_PERF_PATCHES="-one")
    assert without.returncode == 0


def test_the_way_back_gains(throwaway: Throwaway, other: Path) -> None:
    change(throwaway.site / "sglang")
    throwaway.put("sitecustomize.py", knowing(other))
    done = throwaway.command("doctor", "--sglang-path", str(other), "--json")
    assert changes(done)["one.step"] == "gained"
    assert done.returncode == 0


def test_the_way_back_to_an_older_sglang_has_own_words(throwaway: Throwaway, other: Path) -> None:
    """Upstream's change is here and not there; code that is here is not there."""
    change(throwaway.site / "sglang", "return x * scale", "return x * scale  # upstream")
    (other / "srt" / "b.py").unlink()
    throwaway.put("sitecustomize.py", knowing(other))
    done = throwaway.command("doctor", "--sglang-path", str(other), "--json")
    assert changes(done)["two.built"] == "gained"
    assert changes(done)["one.step"] == "same"
    text = throwaway.command("doctor", "--sglang-path", str(other)).stdout
    assert text.startswith("no chosen patch is lost (")
    assert "one.step" not in text
    assert "more do not change: add --all" in text
    assert "one.step" in throwaway.command("doctor", "--sglang-path", str(other), "--all").stdout


def test_a_release_comes_from_the_cache_or_the_index(throwaway: Throwaway, other: Path) -> None:
    folder = throwaway.site.parent / "cache" / "sglang-perf-patches" / "releases" / "2.0"
    folder.mkdir(parents=True)
    other.rename(folder / "sglang")
    done = throwaway.command("doctor", "--sglang-version", "2.0")
    assert done.returncode == 0, done.stderr
    assert f"to   sglang 2.0 at {folder / 'sglang'}" in done.stdout


def test_without_pip_nothing_is_fetched(throwaway: Throwaway, other: Path, tmp_path: Path) -> None:
    """As in an environment that uv made: what is fetched is fetched by pip."""
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"
    done = throwaway.command("doctor", "--sglang-version", "0.5.22", python=python)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"sglang-perf-patches: sglang 0.5.22 could not be fetched: {python} has no pip to fetch it "
        "with (install pip there, or give a folder with this release by --sglang-path)\n"
    )


def test_what_pip_says_is_told(throwaway: Throwaway, other: Path) -> None:
    throwaway.put("pip.py", "import sys; sys.exit('no index can be reached')")
    done = throwaway.command("doctor", "--sglang-version", "0.5.22")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "sglang-perf-patches: sglang 0.5.22 could not be fetched: no index can be reached"
    )


def test_a_cache_folder_that_is_a_file_is_one_sentence(throwaway: Throwaway, other: Path) -> None:
    place = throwaway.site.parent / "a-file"
    place.touch()
    done = throwaway.command("doctor", "--sglang-version", "0.5.22", XDG_CACHE_HOME=str(place))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("sglang-perf-patches: sglang 0.5.22 could not be fetched: ")


def test_without_a_sglang_to_upgrade_from(throwaway: Throwaway, other: Path) -> None:
    """It judges the other one alone; exit code 1 if that one refuses a chosen patch."""
    other = other.parent.rename(throwaway.site.parent / "elsewhere") / "sglang"
    throwaway.put("sitecustomize.py", knowing(other))
    (throwaway.site / "sglang").rename(throwaway.site / "not_sglang")
    done = throwaway.command("doctor", "--sglang-path", str(other), "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["from"], data["to"]["version"], data["lost"]) == (None, "2.0", [])
    assert {patch["to"] for patch in data["patches"]} == {"applies"}
    change(other)
    # The sets know the tree; an upgrade is judged by what they knew before.
    known = Throwaway.write(throwaway.site.parent / "first").site
    throwaway.put("sitecustomize.py", knowing(known))
    done = throwaway.command("doctor", "--sglang-path", str(other))
    assert done.returncode == 1
    assert "this Python has no sglang" in done.stdout
    assert done.stdout.splitlines()[0] == "chosen, and lost: one.step (2 lost, 2 gained)"


HEALTH = """
import sys
from throwaway_patches import *
use(STEP, POLICY)
from sglang_perf_patches.cli import main
look_nowhere_else()
sys.exit(main(["doctor", *sys.argv[1:]]))
"""


def health(
    throwaway: Throwaway, *words: str, script: str = HEALTH, **variables: str | None
) -> tuple[int, str]:
    done = throwaway.execute(sys.executable, "-c", script, *words, **variables)
    assert done.stderr == ""
    return done.returncode, done.stdout


def checks(throwaway: Throwaway, **variables: str | None) -> dict[str, tuple[str, str]]:
    _, out = health(throwaway, "--json", **variables)
    return {each["check"]: (each["word"], each["said"]) for each in json.loads(out)["checks"]}


def test_alone_it_says_whether_all_is_well(throwaway: Throwaway) -> None:
    """A release with a plugin loader, and no server yet."""
    throwaway.put("sglang/srt/plugins/__init__.py", "")
    code, text = health(throwaway)
    lines = text.splitlines()
    conclusion = "all is well; for a server's command: sglang-perf-patches doctor -- COMMAND"
    assert (code, lines) == (0, [conclusion])
    assert "chosen     ok  1 ready" in health(throwaway, "--all")[1]
    by_check = checks(throwaway)
    words = {name: word for name, (word, _) in by_check.items()}
    assert words == {
        **dict.fromkeys(("installed", "loaded", "chosen"), "ok"),
        **dict.fromkeys(("live", "has run"), "-"),
    }
    assert "next to sglang 1.0" in by_check["installed"][1]
    assert by_check["chosen"][1] == "1 ready, 0 refused, 1 off, with SGLANG_PERF_PATCHES=all"
    data = json.loads(health(throwaway, "--json")[1])
    here = {"python": platform.python_version(), "wrapt": metadata.version("wrapt")}
    assert {name: data["versions"][name] for name in here} == here
    assert data["gpu"] == (gpu.machine() and gpu.machine()._asdict())


@pytest.mark.parametrize(
    ("variables", "check", "word", "advice", "code"),
    [
        ({"SGLANG_PLUGINS": "other"}, "loaded", "look", "SGLANG_PLUGINS does not name", 0),
        ({"SGLANG_PERF_PATCHES": "none"}, "chosen", "look", "nothing is ready here", 0),
        ({"SGLANG_PERF_PATCHES": "one.step"}, "chosen", "bad", "can't have", 1),
        ({}, "chosen", "look", "sglang-perf-patches explain one.step", 0),
    ],
)
def test_it_says_what_to_change(
    throwaway: Throwaway, variables: dict[str, str], check: str, word: str, advice: str, code: int
) -> None:
    throwaway.put("sglang/srt/plugins/__init__.py", "")
    script = HEALTH
    if "none" not in variables.values():  # a tree that the patch does not know
        known = Throwaway.write(throwaway.site.parent / "known").site
        change(throwaway.site / "sglang")
        script = script.replace(
            "POLICY)", f"POLICY, tree=source.Tree(source.find({str(known)!r})))"
        )
    done = throwaway.process(script, **variables)
    assert done.returncode == code, done.stderr
    assert check in done.stdout.splitlines()[0]
    said = " ".join(done.stdout.split())
    assert advice in said.partition(f" {check}: ")[2]
    shown = throwaway.process(script.replace('"doctor"', '"doctor", "--all"'), **variables)
    assert any(each.startswith(check) and word in each for each in shown.stdout.splitlines())


def test_it_sees_what_is_live_and_has_run(throwaway: Throwaway) -> None:
    with serving(throwaway, SGLANG_PERF_PATCHES="one.step") as process:
        by_check = checks(throwaway)
        assert by_check["live"] == ("ok", f"process {process.pid}: live 1, pending 0, refused 0")
        assert by_check["has run"][0] == "-"  # it is no server, so nobody waits for it
        assert ask(process, "step") == "102"
        assert wait_for(lambda: checks(throwaway)["has run"][0] == "ok")


def test_a_server_of_another_environment_is_named_apart(throwaway: Throwaway) -> None:
    """A patch is gated in it; that is no problem of this environment."""
    gated = SERVE.replace("use(STEP, ", "use(").replace("one.bad", "one.step")
    with serving(throwaway, "-c", gated, BAD="gates") as process:
        assert checks(throwaway)["live"][0] == "bad"
        throwaway.put("sitecustomize.py", "import sys\nsys.prefix = '/elsewhere'\n")
        where = f"process {process.pid}: it runs in another environment, {sys.prefix}"
        assert checks(throwaway)["live"] == ("-", where)
        said = " ".join(health(throwaway)[1].split())
        assert f"live: {where} run doctor there" in said


ARGUMENTS = f"""
_published = None

class ServerArgs:
    speculative_algorithm = None

{PUBLISHING}"""
RULED_PATCHES = """
import dataclasses
step = dataclasses.replace(STEP, only_with=("speculation",))
gated = [declare(id, install="gates", targets=(f"{A}:helper",)) for id in ("one.a", "one.b")]
use(step, *gated)
"""
RULED = f"""
import os, sys, throwaway_installs
from throwaway_patches import *
from sglang_perf_patches.model.patching import Gated
def gates(patching):
    raise Gated(os.environ["WHY"])
throwaway_installs.gates = gates
{RULED_PATCHES}
import sglang_perf_patches
sglang_perf_patches.activate()
import sglang.srt.a, sglang.srt.server_args as arguments
arguments.set_global_server_args_for_scheduler(arguments.ServerArgs())
print("up", flush=True)
sys.stdin.read()
"""


TENSORS = f"tensor parallelism is on (--tp-size){UNPROVEN}"


@pytest.mark.parametrize(
    ("chosen", "why", "word", "advice", "code"),
    [
        ("all", TENSORS, "bad", f"one.a, one.b are gated: {TENSORS}", 1),
        ("one.b", "cuDNN attends", "bad", "one.b is gated: cuDNN attends", 1),
        ("one.step", "-", "-", "", 0),
    ],
)
def test_a_gate_in_a_server_is_a_problem_and_its_flag_is_named(
    throwaway: Throwaway, chosen: str, why: str, word: str, advice: str, code: int
) -> None:
    """What is not needed there is none, also where nothing else is chosen."""
    throwaway.put("sglang/srt/plugins/__init__.py", "")
    throwaway.put("sglang/srt/server_args.py", ARGUMENTS)
    script = HEALTH.replace("use(STEP, POLICY)", RULED_PATCHES)
    variables = {"WHY": why, "SGLANG_PERF_PATCHES": chosen}
    with serving(throwaway, "-c", RULED, stderr=None, **variables):
        deadline = time.monotonic() + 120
        while True:
            done, out = health(throwaway, "--json", script=script)
            by_check = {each["check"]: each for each in json.loads(out)["checks"]}
            # In the end nothing is live, so nobody waits for a request.
            if by_check["live"]["word"] == word and "has run" not in by_check:
                break
            assert time.monotonic() < deadline, by_check
        assert (done, by_check["live"]["change"]) == (code, advice)
