"""The framework looks again on each tick: waiting patches go live, undone ones say so."""

import sys
from contextlib import suppress
from types import ModuleType

import pytest
from places import Places, Run, of_all, raising
from throwaway import Throwaway

from sglang_perf_patches.live import published as publishing


def test_activated_during_the_import_of_the_last_module(throwaway: Throwaway) -> None:
    throwaway.put(
        "sglang/srt/c.py",
        "import sglang_perf_patches as ours\n"
        "state = ours.activate('all').of('one.own').state\n"
        "def f():\n    return 1\n",
    )
    throwaway.play("""
use(own("sglang.srt.c:f"))
import sglang.srt.c as c
assert c.state == "pending" and engine.report().of("one.own").state == "pending"
wait_for("one.own", "live")
assert c.f() == 2
""")


UNDONE = {
    "a reload": ("importlib.reload(a)", "stock's own again"),
    "stock put back": ("stock.__code__ = code", "stock's own again"),
    "a replacement": ("a.Worker.step = theirs", "replaced by __main__.theirs"),
    "a class": ("a.Worker = type('Worker', (), {'step': theirs})", "replaced by __main__.Worker"),
    "one that was added": ("del a.Worker.extra", "Worker.extra is gone"),
}


@pytest.mark.parametrize("way", UNDONE)
def test_what_was_undone_is_a_conflict_as_a_whole(throwaway: Throwaway, way: str) -> None:
    statement, reason = UNDONE[way]
    done = throwaway.play(f"""
import sglang.srt.a as a, sglang.srt.b as b
stock, code = a.Worker.step, a.Worker.step.__code__
def theirs(self, x):
    return -x
use(BOTH, CALL)
before = b.Caller().call(1)
assert all_live()
worker = a.Worker
{statement}
both = wait_for("two.both", "conflict")
assert {reason!r} in both.reason, both
assert engine.report().of("two.call").state == "live"
assert b.Caller().call(1) in (before + 1, -1 + 1)
assert not hasattr(a.Worker, "extra") and not hasattr(worker, "extra")
assert worker.step in (stock, theirs) and stock.__code__ is code
ours.deactivate()
assert b.Caller().call(1) in (before, -1) and worker.step in (stock, theirs)
wait_for_threads()
""")
    assert done.stderr.count("two.both is conflict") == 1


def test_a_function_of_a_reloaded_module(throwaway: Throwaway) -> None:
    throwaway.play("""
import sglang.srt.a as a, sglang.srt.b as b
use(HELPER)
assert ours.activate("all").of("two.helper").state == "live"
importlib.reload(a)
state = wait_for("two.helper", "conflict")
assert "two.helper" not in state.reason and "stock's own again" in state.reason, state
assert "reloaded sglang.srt.a" in state.reason, state
assert a.helper(1) == 1 and b.use(3) == 6
ours.deactivate()
assert ours.activate("all").of("two.helper").state == "live"
assert a.helper(1) == 1001
""")


def test_a_function_with_code_of_somebody_else(throwaway: Throwaway) -> None:
    throwaway.play("""
import sglang.srt.a as a
use(HELPER, STEP)
assert all_live()
theirs = (lambda x, *, scale=1: -x).__code__
a.helper.__code__ = theirs
state = wait_for("two.helper", "conflict")
assert "replaced by" in state.reason and "<lambda>" in state.reason, state
ours.deactivate()
assert a.helper.__code__ is theirs and a.helper(1) == -1
""")


RELYING = """
import sglang.srt.a as a
relying = declare(
    "one.step", install="step", targets=(f"{A}:Worker.step",), depends=("sglang.srt.c:relied_on",)
)
"""
CHANGED = {
    "later": (
        "c.relied_on = lambda: 2; wait_for('one.step', 'conflict')",
        "is replaced by __main__",
    ),
    "before its import returns": ("", "in memory is not what its source said"),
}


@pytest.mark.parametrize("when", CHANGED)
def test_a_dependency_imported_later_is_verified(throwaway: Throwaway, when: str) -> None:
    statement, reason = CHANGED[when]
    path = throwaway.put("sglang/srt/c.py", "def relied_on():\n    return 1\n")
    throwaway.play(f"""{RELYING}
use(relying, HELPER)
assert all_live()
if not {statement!r}:
    with open({str(path)!r}, "w") as file:
        file.write("def relied_on():\\n    return 2\\n")
import sglang.srt.c as c
{statement}
state = engine.report().of("one.step")
assert state.state == "conflict", state
assert "sglang.srt.c:relied_on {reason}" in state.reason, state
assert "because of" not in state.reason, state
assert a.Worker().step(1) == 2 and a.helper(1) == 1001
""")


def test_looking_again_costs_next_to_nothing_while_nothing_changes(throwaway: Throwaway) -> None:
    throwaway.play("""
import sglang.srt.a as a, sglang.srt.b as b
from sglang_perf_patches.live import memory
use(STEP, BOTH, HELPER)
assert all_live()
verified = []
verify = memory.verify
memory.verify = lambda member: verified.append(member) or verify(member)
engine.look_again()
verified.clear()                 # the second patch changed what the first was verified with
for _ in range(10):
    engine.look_again()
assert verified == []
a.Worker.step = (lambda inner: lambda self, x: inner(self, x))(a.Worker.step)
engine.look_again()
assert [member.patch.id for member in verified][:2] == ["one.step", "two.both"]
""")


def test_a_constant_of_a_half_imported_module_is_not_there_yet(throwaway: Throwaway) -> None:
    """It is no conflict: whoever reads it imports it first."""
    throwaway.put("sglang/srt/c.py", "def use(x):\n    from .c2 import SIZE\n    return x + SIZE\n")
    throwaway.put("sglang/srt/c2.py", "import half\nhalf.look()\nSIZE = 64\n")
    throwaway.put("half.py", "look = lambda: None\n")
    throwaway.play("""
import half, sglang.srt.c as c
use(own("sglang.srt.c:use", 1000))
states = []
half.look = lambda: states.append(ours.activate("all").of("one.own"))
import sglang.srt.c2 as c2
assert [state.state for state in states] == ["live"], states
assert c.use(1) == 1065
c2.SIZE = 63
engine.look_again()
assert engine.report().of("one.own").state == "conflict"
""")


def test_no_activation_stays_in_memory(throwaway: Throwaway) -> None:
    throwaway.lend_plugin_loader("0.5.23")
    throwaway.play("""
import gc
from sglang.srt.plugins import hook_registry
from sglang_perf_patches.live.registry import Registry
use(STEP)
for _ in range(5):
    assert ours.activate("all").of("one.step").state == "pending"
    ours.deactivate()
    assert engine.report() is None
# A tick of one that has ended may be under way still, and holds it until it returns.
def kept():
    gc.collect()
    return sum(type(each) is Registry for each in gc.get_objects())
wait_until(lambda: kept() <= 1)
ours.activate("all")
import sglang.srt.a as a
assert a.Worker().step(1) == 102
""")


def test_an_interruption_leaves_no_publication_under_way() -> None:
    """At any line of ours; while the arguments are published, nothing is read."""
    watch, during, interrupt = publishing.Watched(lambda: None), [], raising(KeyboardInterrupt)
    module = ModuleType("publishing")
    module.note = lambda: during.append(watch.is_under_way())  # type: ignore[attr-defined]
    exec("def publish():\n    note()\n", vars(module))
    stock = module.publish.__code__
    watch.hook(module, "publish")
    assert module.publish.__code__ is not stock

    def published(at: Run | None) -> Places:
        places = Places((publishing.__file__,), at, interrupt)
        sys.settrace(places.trace)
        with suppress(KeyboardInterrupt):
            module.publish()
        sys.settrace(None)
        return places

    runs = of_all(published(None).times, later=True)
    assert during == [True]
    assert len(runs) > 2
    for at in runs:
        assert published(at).struck
        assert not watch.is_under_way(), at
    assert watch.unhook()
    assert module.publish.__code__ is stock
    assert set(vars(module)) <= {*dir(ModuleType("other")), "__builtins__", "note", "publish"}


def test_a_dependency_is_verified_when_its_import_has_ended(throwaway: Throwaway) -> None:
    """Also where it was being imported, and changed already, while the patch went live."""
    throwaway.put("sglang/srt/c.py", "def relied_on():\n    return 1\nimport half\nhalf.look()\n")
    throwaway.put("half.py", "look = lambda: None\n")
    throwaway.play(f"""{RELYING}
import half
use(relying)
def look():
    sys.modules["sglang.srt.c"].relied_on = lambda: 2
    assert ours.activate("all").of("one.step").state == "live"
half.look = look
import sglang.srt.c as c
engine.look_again()
state = engine.report().of("one.step")
assert state.state == "conflict" and "c:relied_on is replaced" in state.reason, state
assert a.Worker().step(1) == 2
""")


def test_an_install_that_failed_while_an_import_ended_is_tried_again(throwaway: Throwaway) -> None:
    """What it missed may have been that import; without one, a failure is a failure."""
    throwaway.put("sglang/srt/c.py", "def f():\n    return 1\n")
    throwaway.put("sglang/srt/c2.py", "def g():\n    return 1\n")
    throwaway.play("""
tries = []
def own(patching):
    tries.append(1)
    if len(tries) == 1:
        import sglang.srt.c2
        raise AttributeError("half imported")
    patching.override("sglang.srt.c:f", lambda inner: lambda: inner() + 1)
def other(patching):
    raise AttributeError("never there")
use(
    declare("one.own", install=own, targets=("sglang.srt.c:f",)),
    declare("one.other", install=other, targets=("sglang.srt.c2:g",)),
)
assert ours.activate("all").of("one.own").state == "pending"
import sglang.srt.c as c
wait_for("one.own", "live")
assert c.f() == 2 and len(tries) == 2
wait_for("one.other", "failed")
""")
