"""Putting patches live: at once or later, once, whole or not at all; and taking them off."""

import pytest
from throwaway import Throwaway


def test_modules_imported_later(throwaway: Throwaway) -> None:
    throwaway.play("""
use(STEP, BOTH)
assert [s.state for s in ours.activate("all").patches] == ["pending", "pending"]
assert "sglang" not in sys.modules
import sglang.srt.a as a
assert ours.activate().of("one.step").state == "live"
assert ours.activate().of("two.both").state == "pending"
assert a.Worker().step(1) == 102          # of two.both nothing yet
assert not hasattr(a.Worker, "extra")
import sglang.srt.b as b
assert ours.activate().of("two.both").state == "live"
assert a.Worker().step(1) == 202
assert b.Caller().call(1) == 203
assert a.Child().extra() == "extra"
""")


def test_deactivate_gives_stock_back_identically(throwaway: Throwaway) -> None:
    throwaway.play("""
import sglang.srt.a as a, sglang.srt.b as b
def kinds(patching):
    patching.override(f"{A}:Worker.fixed", lambda inner: staticmethod(lambda x: inner(x) + 1))
    patching.override(f"{A}:Worker.factor", lambda inner: inner + 1)
kinds = declare("two.kinds", install=kinds, targets=(f"{A}:Worker.fixed", f"{A}:Worker.factor"))
def stock():
    owners = (a, b, a.Worker, a.Child, b.Caller)
    everything = [(owner, name, value) for owner in owners for name, value in vars(owner).items()]
    return {
        (owner, name): (id(value), id(getattr(value, "__code__", None)))
        for owner, name, value in everything
        if name not in ("__dict__", "__weakref__")
    }
before = stock()
use(STEP, TEN, HELPER, BOTH, kinds)
assert all_live()
assert (a.Child.fixed(1), a.Child.factor) == (2, 2)
assert a.Child().step(1) == 1120
assert b.use(3) == a.helper(3, scale=2) == 1006   # bound by `from ... import` before
ours.deactivate()
assert stock() == before
ours.activate("one.ten")
assert ours.activate().selection == "one.ten"
assert a.Worker().step(1) == 20
ours.deactivate()
ours.deactivate()
assert stock() == before
""")


def test_modules_imported_after_deactivate_are_stock(throwaway: Throwaway) -> None:
    throwaway.play("""
use(STEP, HELPER)
ours.activate("all")
ours.deactivate()
import sglang.srt.a as a
assert a.Worker().step(1) == 2 and a.helper(1) == 1
""")


def test_patches_compose_in_declared_order_and_come_off_singly(throwaway: Throwaway) -> None:
    throwaway.play("""
import sglang.srt.a as a
for patches in ((STEP, TEN), (TEN, STEP)):
    use(*patches)
    ours.activate("all")
    expected = (1 + 1 + 100) * 10 if patches[0] is STEP else (1 + 1) * 10 + 100
    assert a.Worker().step(1) == expected
    take_off("one.step")
    assert a.Worker().step(1) == 20
    ours.deactivate()
    assert a.Worker().step(1) == 2
""")


def test_a_second_call_that_asks_for_something_else(throwaway: Throwaway) -> None:
    done = throwaway.play("""
import sglang.srt.a as a
from pytest import raises
use(STEP, HELPER)
ours.activate("one")
for text in ("no such thing", "one.stpe", "all,,two", "two.helper,-one,none"):
    with raises(ValueError, match="the first call has decided already, for 'one'"):
        ours.activate(text)
assert ours.activate().selection == "one"           # what the environment says is not asked for
assert ours.activate("one.step").of("two.helper").state == "off"
assert ours.activate("two").of("two.helper").state == "off"
assert a.helper(1) == 1 and a.Worker().step(1) == 102
""")
    line = "'two' changes nothing: the first call decided, for 'one'"
    assert done.stderr.count("\n") == 1
    assert line in done.stderr


def test_python_calls_print_as_a_few_lines(throwaway: Throwaway) -> None:
    done = throwaway.run("""
import sys
from pytest import raises
from throwaway_patches import *
import sglang_perf_patches as ours
use(STEP, TEN, HELPER, POLICY)
assert ours.report() is None and "sglang_perf_patches.live.engine" not in sys.modules
with raises(ours.SelectionError, match="frob"):
    ours.activate(["one.step", "frob"])
assert ours.report() is None
print(ours.activate(["one.step", "two.helper"]))
import sglang.srt.a as a
a.Worker().step(1)
print(ours.report())
print(*ours.verdicts(), sep="\\n")
with raises(AttributeError, match="frob"):
    ours.frob
with raises(KeyError, match="'one.stpe'.*one.step"):
    ours.report().of("one.stpe")
""")
    assert done.stdout.splitlines() == [
        "sglang 1.0, SGLANG_PERF_PATCHES=one.step,two.helper: 0 live",
        "  one.step: pending: sglang.srt.a is not imported yet",
        "  two.helper: pending: sglang.srt.a is not imported yet",
        "sglang 1.0, SGLANG_PERF_PATCHES=one.step,two.helper: 2 live",
        *("  one.step: live, has run", "  two.helper: live"),
        "one.step applies: this is the code of 1.0, on which the patch was proven",
        "one.ten applies: this is the code of 1.0, on which the patch was proven",
        "two.helper applies: this is the code of 1.0, on which the patch was proven",
        "two.policy applies: this is the code of 1.0, on which the patch was proven",
    ]


def test_a_second_copy_of_the_plugin_finds_the_first(throwaway: Throwaway) -> None:
    throwaway.play("""
import sglang.srt.a as a
use(STEP)
ours.activate("all")
for name in [n for n in sys.modules if n.startswith(("sglang_perf_patches", "throwaway"))]:
    del sys.modules[name]
from throwaway_patches import *
use(STEP)
import sglang_perf_patches as copy
assert copy is not ours
state = copy.activate("all").of("one.step")
assert state.state == "conflict", state
assert a.Worker().step(1) == 102
""")


@pytest.mark.parametrize("install", ["breaks", "forgets"])
def test_a_failure_rolls_back_and_spares_the_import(throwaway: Throwaway, install: str) -> None:
    done = throwaway.play(f"""
targets = (f"{{A}}:Worker.step", f"{{B}}:Caller.call")
use(STEP, declare("two.bad", install="{install}", targets=targets))
ours.activate("all")
import sglang.srt.a as a, sglang.srt.b as b
state = ours.activate().of("two.bad")
assert state.state == "failed", state
assert a.Worker().step(1) == 102 and b.Caller().call(1) == 102   # one.step alone
ours.deactivate()
assert a.Worker().step(1) == 2
""")
    assert done.stderr.count("two.bad is failed") == 1


def test_live_while_a_dependency_is_still_being_executed(throwaway: Throwaway) -> None:
    """As sglang's eagle worker does: its import brings the modules that depend on it."""
    late = "import sglang.srt.a\n\nclass Late:\n    def late(self):\n        return 1\n"
    throwaway.put("sglang/srt/c.py", late)
    throwaway.play("""
step = declare(
    "one.step", install="step", targets=(f"{A}:Worker.step",),
    depends=("sglang.srt.c:Late", "sglang.srt.c:Late.late"),
)
use(step)
assert ours.activate("all").of("one.step").state == "pending"
import sglang.srt.c
state = ours.activate().of("one.step")
assert (state.state, state.reason) == ("live", ""), state
assert sys.modules["sglang.srt.a"].Worker().step(1) == 102
""")


def test_a_replaced_method_of_a_class_that_a_patch_relies_on(throwaway: Throwaway) -> None:
    throwaway.play("""
import sglang.srt.a as a, sglang.srt.b as b
call = declare("two.call", install="call", targets=(f"{B}:Caller.call",), depends=(f"{A}:Worker",))
use(STEP, call)
assert all_live()   # ours is no conflict
ours.deactivate()
a.Worker.step = lambda self, x: x
state = ours.activate("two").of("two.call")
assert state.state == "conflict" and "Worker.step is replaced" in state.reason, state
assert b.Caller().call(1) == 1
""")


def test_what_needs_a_patch_that_fails_goes_with_it(throwaway: Throwaway) -> None:
    throwaway.play("""
import sglang.srt.a as a, sglang.srt.b as b
bad = declare("one.bad", install="breaks", targets=(f"{A}:Worker.step", f"{B}:Caller.call"))
needing = declare("two.helper", install="helper", targets=(f"{A}:helper",), requires=("one.bad",))
for patches in ((bad, needing), (needing, bad)):
    use(*patches)
    report = ours.activate("all")
    assert {s.state for s in report.patches} == {"failed"}, report
    assert "needs one.bad" in report.of("two.helper").reason
    assert a.helper(1) == 1 and a.Worker().step(1) == 2
    ours.deactivate()
""")


def test_what_a_cache_kept_of_a_patched_call_goes_with_the_patch(throwaway: Throwaway) -> None:
    cached = "import functools\n@functools.cache\ndef size(x):\n    return x\n"
    throwaway.put("sglang/srt/c.py", cached)
    throwaway.play("""
import sglang.srt.c as c
use(own("sglang.srt.c:size", 10))
assert all_live() and c.size(1) == 11
ours.deactivate()
assert c.size(1) == 1
""")
