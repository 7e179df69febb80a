"""A patch that holds work stays on until that is done, and says what it waits for."""

import ast
import importlib
from pathlib import Path

import pytest
from throwaway import Throwaway

from sglang_perf_patches import sets

HOLDS = """
import sglang.srt.a as a, sglang.srt.b as b
held = []
def holding(patching):
    installs.step(patching)
    patching.drain(lambda: not held, "the last copy is made")
holds = declare("one.holds", install=holding, targets=(f"{A}:Worker.step",))
"""


def test_deactivate_waits_for_the_work_and_says_so(throwaway: Throwaway) -> None:
    done = throwaway.play(f"""{HOLDS}
use(holds, HELPER)
assert all_live()
held.append("a copy")
ours.deactivate()
assert a.Worker().step(1) == 102 and a.helper(1) == 1       # the other one holds nothing
state = engine.report().of("one.holds")
assert (state.state, state.reason) == (
    "live", "to be removed: waits until the last copy is made"
), state
assert ours.activate("all").of("one.holds").state == "live"  # of the one that is being left
held.clear()
wait_until(lambda: engine.report() is None)
assert a.Worker().step(1) == 2
assert all_live()
assert a.Worker().step(1) == 102 and a.helper(1) == 1001
""")
    line = "sglang-perf-patches: deactivate() waits: one.holds until the last copy is made"
    assert line in done.stderr


def test_a_conflict_too(throwaway: Throwaway) -> None:
    done = throwaway.play(f"""{HOLDS}
def both(patching):
    holding(patching)
    installs.call(patching)
use(declare("one.holds", install=both, targets=(A + ":Worker.step", B + ":Caller.call")))
ours.activate("all")
held.append("a copy")
b.Caller.call = lambda self, x: -x
engine.look_again()
state = engine.report().of("one.holds")
assert state.state == "live" and "conflict: sglang.srt.b:Caller.call is replaced" in state.reason
assert "waits until the last copy is made" in state.reason, state
assert a.Worker().step(1) == 102
held.clear()
wait_for("one.holds", "conflict")
assert a.Worker().step(1) == 2 and b.Caller().call(1) == -1
wait_for_threads()
""")
    assert done.stderr.count("one.holds is conflict") == 1


@pytest.mark.parametrize("order", ["holds, TEN", "TEN, holds"])
def test_what_would_be_made_again_above_it_waits_too(throwaway: Throwaway, order: str) -> None:
    """To take off a patch makes what stands above it again; that may hold work."""
    throwaway.play(f"""{HOLDS}
use({order})
ours.activate("all")
held.append("a copy")
take_off("one.ten")
assert engine.report().of("one.ten").state == "live"
held.clear()
engine.look_again()
assert engine.report().of("one.ten").state == "off"
assert a.Worker().step(1) == 102
""")


def test_what_a_patch_that_holds_work_needs_stays_with_it(throwaway: Throwaway) -> None:
    throwaway.play(f"""{HOLDS}
use(HELPER, dataclasses.replace(holds, requires=("two.helper",)))
assert all_live()
held.append("a copy")
take_off("two.helper")
state = engine.report().of("two.helper")
assert state.state == "live" and "until the last copy is made" in state.reason, state
assert a.helper(1) == 1001 and a.Worker().step(1) == 102
held.clear()
engine.look_again()
assert [s.state for s in engine.report().patches] == ["off", "failed"], engine.report()
assert a.helper(1) == 1 and a.Worker().step(1) == 2
""")


def test_a_drain_that_fails_keeps_the_patch_on(throwaway: Throwaway) -> None:
    throwaway.play(f"""{HOLDS}
def fails(patching):
    installs.step(patching)
    patching.drain(lambda: held[0], "the last copy is made")
use(declare("one.holds", install=fails, targets=(A + ":Worker.step",)))
ours.activate("all")
ours.deactivate()
assert a.Worker().step(1) == 102 and engine.report().of("one.holds").state == "live"
held.append(True)
ours.deactivate()
assert a.Worker().step(1) == 2 and engine.report() is None
""")


MODULES = [
    f"{sets.__name__}.{name}.{module}"
    for name in sets.NAMES
    for module in importlib.import_module(f"{sets.__name__}.{name}").MODULES
]


@pytest.mark.parametrize("name", MODULES)
def test_each_patch_says_when_it_may_be_taken_off(name: str) -> None:
    """Whenever no call of it runs, or once it holds no work: its set-up asks for a drain."""
    module = importlib.import_module(name)
    drains = {"drain", "stay_with_queues"}
    called = {
        getattr(node.func, "attr", getattr(node.func, "id", ""))
        for node in ast.walk(ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    }
    assert bool(module.PATCH.anytime) or called & drains
