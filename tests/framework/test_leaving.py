"""A patch that holds work stays on until that is done, and says what it waits for."""

from __future__ import annotations

import ast
import functools
import importlib.util
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
installs.holding = holding
holds = declare("one.holds", install="holding", targets=(f"{A}:Worker.step",))
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
installs.holding_both = both
targets = (A + ":Worker.step", B + ":Caller.call")
use(declare("one.holds", install="holding_both", targets=targets))
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
installs.holding = fails
use(holds)
ours.activate("all")
ours.deactivate()
assert a.Worker().step(1) == 102 and engine.report().of("one.holds").state == "live"
held.append(True)
ours.deactivate()
assert a.Worker().step(1) == 2 and engine.report() is None
""")


INSTALLS = sorted(
    {
        variant.install
        for patch_set in sets.load()
        for patch in patch_set.patches
        for variant in patch.variants
    }
)


@pytest.mark.parametrize("install", INSTALLS)
def test_each_patch_says_when_it_may_be_taken_off(install: str) -> None:
    """Its install function, or one of the set's that this calls, asks for a drain or for none."""
    module, _, name = install.partition(":")
    waiting, seen = [(module, name)], set[tuple[str, str]]()
    while waiting:
        module, name = waiting.pop()
        syntax = syntax_of(module)
        seen.add((module, name))
        imported = {
            alias.asname or alias.name: (
                ".".join([*module.split(".")[: -node.level], node.module]),
                alias.name,
            )
            for node in ast.walk(syntax)
            if isinstance(node, ast.ImportFrom) and node.level in {1, 2} and node.module
            for alias in node.names
        }
        for node in syntax.body:
            if getattr(node, "name", "") != name:
                continue
            for call in (each for each in ast.walk(node) if isinstance(each, ast.Call)):
                if isinstance(call.func, ast.Attribute) and call.func.attr in {"drain", "anytime"}:
                    return
                if isinstance(call.func, ast.Name):
                    called = imported.get(call.func.id, (module, call.func.id))
                    waiting += [called] if called not in seen else []
    raise AssertionError(f"{install} says neither what it holds nor that it holds nothing")


@functools.cache
def syntax_of(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    assert spec
    assert spec.origin
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
