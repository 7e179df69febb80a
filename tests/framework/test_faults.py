"""Faults: whatever goes wrong, a process runs as stock or as patched, and says which."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from running import STATUS_COMMAND
from throwaway import REPOSITORY, Throwaway, strictly

import tiers
from linux_mlx.patience import limit_s
from sglang_perf_patches import downloads

ON = dict.fromkeys(("one.ten", "two.both", "two.helper"), True)
OFF = dict.fromkeys(ON, False)
"""What `inject` says of all patches where they are on, and off."""


def outcomes_of(throwaway: Throwaway, script: str, *words: str, **variables: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(script)), *words],
        env=throwaway.environment(**variables),
        capture_output=True,
        text=True,
        timeout=limit_s(7200),  # with --all
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    for outcome in outcomes:
        assert "traceback" not in outcome, outcome["traceback"]
    return outcomes


def inject(throwaway: Throwaway, *words: str) -> Any:
    return outcomes_of(throwaway, "inject.py", *words)


def struck(outcomes: list[dict[str, Any]], *modules: str) -> list[dict[str, Any]]:
    """The attempts in which something came in between, which it did in these modules.

    A line may not run again that only a slow machine runs.
    """
    found = [outcome for outcome in outcomes if outcome["where"]]
    assert len(found) > 0.9 * len(outcomes)
    assert {f"{each}.py" for each in modules} <= {each["where"].split(":")[0] for each in found}
    return found


@pytest.mark.parametrize(
    ("folders", "modules"),
    [
        (
            "plugin,live/,telemetry/,model/",
            ("plugin", "model/switch", "live/registry", "live/switch", "telemetry/recorder"),
        ),
        ("compat/,sets/", ("compat/parsing", "compat/source", "compat/verdict")),
    ],
)
def test_a_fault_at_any_call_leaves_stock_or_patched(
    throwaway: Throwaway, folders: str, modules: tuple[str, ...], pytestconfig: pytest.Config
) -> None:
    apart = 0 if tiers.is_whole(pytestconfig) else 10
    whole, *faulty = inject(throwaway, "raises", folders, str(apart))
    assert set(whole["states"].values()) == {"live"}
    assert set(whole["effects"].values()) == {True}
    for outcome in struck(faulty, *modules):
        live = {id: outcome["states"].get(id) == "live" for id in outcome["effects"]}
        assert outcome["effects"] == live, outcome
        assert all(live.values()) or outcome["messages"], outcome


@pytest.mark.shares_nothing
@pytest.mark.parametrize(
    ("scenario", "folders", "modules"),
    [
        ("imported before", "", ("compat/source", "live/switch", "telemetry/recorder")),
        ("imported later", "live/", ("live/published", "live/switch")),
        ("deactivating", "", ("live/registry", "live/switch", "telemetry/recorder")),
    ],
)
def test_an_interruption_at_any_line_leaves_everything_or_nothing(
    throwaway: Throwaway,
    scenario: str,
    folders: str,
    modules: tuple[str, ...],
    pytestconfig: pytest.Config,
) -> None:
    """Afterwards the interrupted caller can activate and take off patches as before."""
    apart = 0 if tiers.is_whole(pytestconfig) else 16
    whole, *outcomes = inject(throwaway, "interrupts", folders, str(apart), scenario)
    assert whole["effects"] == (OFF if scenario == "deactivating" else ON)
    for outcome in struck(outcomes, *modules):
        # An import that was interrupted has left no module to look at.
        assert outcome["effects"] in (ON, OFF) or scenario == "imported later", outcome
        require_whole(outcome)


@pytest.mark.shares_nothing
@pytest.mark.parametrize("scenario", ["imported before", "deactivating"])
@pytest.mark.parametrize("fault", ["interrupts-twice", "fails", "deactivates", "activates"])
def test_what_comes_in_between_at_any_line_leaves_everything_or_nothing(
    throwaway: Throwaway, fault: str, scenario: str, pytestconfig: pytest.Config
) -> None:
    """A second interruption, want of memory, and a signal handler that calls us."""
    apart = 0 if tiers.is_whole(pytestconfig) else 16
    _, *outcomes = inject(throwaway, fault, "live/", str(apart), scenario)
    for outcome in struck(outcomes, "live/threads", "live/registry", "live/switch"):
        if fault == "fails" and scenario == "imported before":
            require_each_whole(outcome)
        else:
            require_whole(outcome)


@pytest.mark.shares_nothing
@pytest.mark.parametrize("fault", ["deactivates", "again"])
def test_a_handler_in_the_middle_of_the_standard_library_does_not_hang(
    throwaway: Throwaway, fault: str, pytestconfig: pytest.Config
) -> None:
    """It may come while its thread holds a lock of an event."""
    apart = 0 if tiers.is_whole(pytestconfig) else 4
    watched = f"telemetry/recorder.py,{threading.__file__}"
    _, *outcomes = inject(throwaway, fault, watched, str(apart), "on and off")
    found = struck(outcomes, "telemetry/recorder", threading.__file__.removesuffix(".py"))
    for outcome in found:
        require_whole(outcome)


@pytest.mark.shares_nothing
@pytest.mark.parametrize("what", ["activates", "deactivates", "interrupts"])
def test_what_comes_in_between_while_our_own_code_is_imported(
    throwaway: Throwaway, what: str, pytestconfig: pytest.Config
) -> None:
    apart = 10 if tiers.is_whole(pytestconfig) else 1000
    search = [str(downloads.tree("0.5.23")), str(REPOSITORY / "src")]
    outcomes = outcomes_of(
        throwaway, "first_call.py", what, str(apart), PYTHONPATH=os.pathsep.join(search)
    )
    assert outcomes
    for outcome in struck(outcomes):
        assert "pending" in outcome["later"], outcome
        assert outcome["off"], outcome
        # Before the import begins, and before judging does, the handler's call is the earlier one.
        early = outcome["early"] or outcome["where"].startswith("__init__.py")
        if what == "activates" or not early:
            assert what == "interrupts" or outcome["on"] == (what == "activates"), outcome


def require_whole(outcome: dict[str, Any]) -> None:
    """Everything or nothing was on, `status` says which, and a later call works."""
    if outcome["effects"] is not None:
        assert outcome["effects"] in (ON, OFF), outcome
        require_each_whole(outcome)
    states, effects = outcome["later"]
    # An import that was interrupted after its patch went live runs again: another module, which is
    # not the one that was patched.
    again = {"live", "conflict"} if outcome["effects"] is None else {"live"}
    assert set(states.values()) <= again, outcome
    assert effects == {name: state == "live" for name, state in states.items()}, outcome
    assert outcome["off"] == OFF, outcome
    assert outcome["left"] == [], outcome


def require_each_whole(outcome: dict[str, Any]) -> None:
    """Each patch was on or off as a whole, as `status` says, and comes off."""
    live = {name: outcome["states"].get(name) == "live" for name in outcome["effects"]}
    assert outcome["effects"] == live, outcome
    assert not any(outcome["off"].values()), outcome
    assert outcome["left"] == [], outcome


def test_a_process_that_is_killed_at_any_call_leaves_nothing(throwaway: Throwaway) -> None:
    def tree() -> dict[str, bytes]:
        files = (path for path in throwaway.site.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in files}

    before = tree()
    _, *outcomes = inject(throwaway, "kills", "live/,telemetry/", "8")
    # A call that only a slow machine makes may not be there again.
    killed = [outcome for outcome in outcomes if set(outcome) == {"killed"}]
    assert len(killed) > 0.9 * len(outcomes)
    assert tree() == before
    records = throwaway.runtime / "sglang-perf-patches"
    assert list(records.iterdir())  # what the killed ones left
    done = throwaway.execute(*STATUS_COMMAND)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no running sglang process" in done.stdout
    assert list(records.iterdir()) == []
    (again,) = inject(throwaway, "raises", "nowhere/", "1")
    assert set(again["effects"].values()) == {True}


FAULT = """
from throwaway_patches import *
import sglang_perf_patches as ours
from sglang_perf_patches.live import memory
use(STEP, HELPER)
ours.activate()
import sglang.srt.a as a, sglang.srt.b as b
from sglang.srt.plugins.hook_registry import HookRegistry
assert a.Worker().step(1) == 102
memory.verify_if_changed = lambda *_: None.unknown
HookRegistry.apply_hooks()
report = ours.activate()
assert {s.state for s in report.patches} == {"failed"}, report
assert a.Worker().step(1) == 2 and b.use(3) == 6
print("served")
"""


def test_an_unexpected_fault_takes_every_patch_off(throwaway: Throwaway) -> None:
    throwaway.lend_plugin_loader("0.5.23")
    done = throwaway.run(FAULT)
    assert done.stderr.count("every patch is removed: AttributeError") == 1


def test_an_unexpected_fault_under_strict_ends_with_one_line(throwaway: Throwaway) -> None:
    throwaway.lend_plugin_loader("0.5.23")
    done = throwaway.process(FAULT.replace("== 102", "== 2"), **strictly("two"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "two.helper is failed: AttributeError" in done.stderr


def test_damaged_fingerprints_are_one_sentence(throwaway: Throwaway) -> None:
    copy = throwaway.site / "sglang_perf_patches"
    shutil.copytree(REPOSITORY / "src" / "sglang_perf_patches", copy)
    damaged = copy / "sets" / "mamba" / "known.json"
    whole = damaged.read_bytes()
    damages = (
        *(b"", whole[: len(whole) // 2], b"[]", b"null", b"\xff\xfe" + whole, b"[" * 100_000),
        b'{"sglang.srt.a:b": 1}',
        *(  # what may not stand for the releases
            f'{{"sglang.srt.a:b": {{"0": {releases}}}}}'.encode()
            for releases in ("1", '["0.5.9"]', '"soon"', '""', '"0.5.10 … 0.5.9"')
        ),
        whole.replace(" … 0.5.23".encode(), " …".encode()),
    )
    script = (
        "import sys\n"
        "from sglang_perf_patches import plugin, sets\n"
        "from sglang_perf_patches.live import engine\n"
        "from sglang_perf_patches.cli import main\n"
        "code = main(['list'])\n"
        "plugin.load()\n"
        "import sglang.srt.a as a\n"
        "assert a.Worker().step(1) == 2 and engine.report() is None\n"
        "sys.exit(code)\n"
    )
    for damage in damages:
        damaged.write_bytes(damage)
        done = throwaway.process(script)
        assert (done.returncode, done.stdout) == (2, ""), (damage[:99], done.stderr)
        listed, loaded = done.stderr.splitlines()
        assert listed.startswith("sglang-perf-patches: the fingerprints of mamba"), damage[:99]
        assert loaded.startswith("sglang-perf-patches: no patch is applied: the fingerprints of")
    damaged.write_text("{}")  # what is missing refuses
    script = (
        "from sglang_perf_patches import sets\n"
        "from sglang_perf_patches.compat import source, verdict\n"
        f"tree = source.at({str(downloads.tree('0.5.23'))!r})\n"
        "print({v.word for v in verdict.judge_each([sets.declared('mamba')], tree)})\n"
    )
    assert "'refused'" in (words := throwaway.run(script).stdout)
    assert "'applies'" not in words


def test_an_import_that_fails_half_way_and_then_succeeds(throwaway: Throwaway) -> None:
    for name in ("a", "b"):
        path = throwaway.site / "sglang" / "srt" / f"{name}.py"
        path.write_text(f"{path.read_text()}\nimport fails_at\nfails_at.check({name!r})\n")
    throwaway.put(
        "fails_at.py",
        "left = ['a', 'b', 'b']\n"
        "def check(name):\n"
        "    if name in left:\n"
        "        left.remove(name)\n"
        "        raise ImportError(f'{name} fails')\n",
    )
    done = throwaway.play("""
use(STEP, BOTH, HELPER)
ours.activate()

def attempt(name):
    try:
        __import__(f"sglang.srt.{name}")
    except ImportError as error:
        assert str(error) == f"{name} fails", error
    return [state.state for state in ours.activate().patches]

assert attempt("a") == ["pending"] * 3
assert "sglang.srt.a" not in sys.modules
assert attempt("b") == ["live", "pending", "live"]      # b imports a, and fails itself
import sglang.srt.a as a
assert a.Worker().step(1) == 102 and not hasattr(a.Worker, "extra")
assert attempt("b") == ["live", "pending", "live"]
assert attempt("b") == ["live"] * 3
import sglang.srt.b as b
assert a.Worker().step(1) == 202 and b.Caller().call(1) == 203 and a.Worker().extra()
""")
    assert done.stderr == ""
