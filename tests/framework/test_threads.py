"""Imports in several threads at once, while install code imports too."""

import gc
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest
from throwaway import Throwaway

from sglang_perf_patches.live import threads as live_threads

SCRIPT = """
import meeting
def slow(patching):
    import slow_install
    slow_install.step(patching)
use(declare("one.step", install=slow, targets=(f"{A}:Worker.step",)), own("sglang.srt.c:f"))
assert {s.state for s in ours.activate("all").patches} == {"pending"}

def other():
    import sglang.srt.c

thread = threading.Thread(target=other)
thread.start()
assert meeting.c_is_executing.wait(200)
import sglang.srt.a as a       # goes live, for which code is imported that imports c
thread.join(200)
assert not thread.is_alive()
import sglang.srt.c as c
assert all_live(), ours.activate()
assert a.Worker().step(1) == 102 and c.f() == 2
print("served")
"""

MEETING = """
import threading
c_is_executing, install_is_running = threading.Event(), threading.Event()
"""

C = """
import meeting
meeting.c_is_executing.set()
assert meeting.install_is_running.wait(200)
import time
time.sleep(0.5)        # until the other thread waits for this import
def f():
    return 1
"""

IMPORT = "import meeting; meeting.install_is_running.set(); import sglang.srt.c"

INSTALLS = {
    "the install module imports": f"{IMPORT}\nfrom throwaway_installs import step\n",
    "the install function imports": (
        f"import throwaway_installs\ndef step(patching):\n"
        f"    {IMPORT}\n    throwaway_installs.step(patching)\n"
    ),
    "the making imports": (
        "def step(patching):\n    def make(inner):\n"
        f"        {IMPORT}\n        return lambda self, x: inner(self, x) + 100\n"
        '    patching.override("sglang.srt.a:Worker.step", make)\n'
    ),
}


@pytest.mark.parametrize("way", INSTALLS)
def test_install_code_that_waits_for_another_s_import(throwaway: Throwaway, way: str) -> None:
    throwaway.put("meeting.py", MEETING)
    throwaway.put("sglang/srt/c.py", C)
    throwaway.put("slow_install.py", INSTALLS[way])
    done = throwaway.play(SCRIPT)
    assert done.stdout == "served\n"


def test_many_threads_import_and_activate_at_once(throwaway: Throwaway) -> None:
    throwaway.play("""
sys.setswitchinterval(1e-6)
use(STEP, TEN, BOTH, HELPER)
start = threading.Barrier(12)
def activate():
    start.wait()
    ours.activate("all")
def bring(name):
    start.wait()
    __import__(name)
calls = [(activate, ())] * 8 + [(bring, (f"sglang.srt.{n}",)) for n in "abab"]
threads = [threading.Thread(target=call, args=args) for call, args in calls]
[t.start() for t in threads]; [t.join() for t in threads]
import sglang.srt.a as a, sglang.srt.b as b
assert all_live(), ours.activate()
assert a.Worker().step(1) == (2 + 100) * 10 + 100 and b.use(3) == 1006
ours.deactivate()
assert a.Worker().step(1) == 2 and b.use(3) == 6
""")


LATE = """
from sglang_perf_patches.live import registry
from sglang_perf_patches.live.registry import Registry

bad = declare("two.bad", install="breaks", targets=(f"{A}:Worker.step", f"{B}:Caller.call"))
use(bad)
looked, imported = threading.Event(), threading.Event()
attempt = Registry._attempt
def slow(registered, member):
    attempt(registered, member)
    if threading.current_thread().name == "ticks" and not looked.is_set():
        looked.set()
        imported.wait(0.5)      # meanwhile the module arrives
ours.activate("all")
import sglang.srt.a
Registry._attempt = slow
ticks = threading.Thread(target=ours.activate, name="ticks", daemon=True)
ticks.start()
assert looked.wait(200)
"""


def test_a_thread_that_looked_too_early_does_not_keep_a_failure_back(throwaway: Throwaway) -> None:
    """A server whose last import has returned runs all of a patch or none, and says which."""
    done = throwaway.play(f"""{LATE}
registry._OTHER_THREAD_S = 200
import sglang.srt.b
assert engine.report().of("two.bad").state == "failed", engine.report()
ticks.join(200)
""")
    assert done.stderr.count("two.bad is failed") == 1


def test_a_thread_that_waits_for_the_import_does_not_stop_it(throwaway: Throwaway) -> None:
    """The attempt that can't end before the import has returned looks again, and decides."""
    done = throwaway.play(f"""{LATE.replace("imported.wait(0.5)", "imported.wait(200)")}
import sglang.srt.b
assert engine.report().of("two.bad").state == "pending", engine.report()
imported.set()
ticks.join(200)
assert engine.report().of("two.bad").state == "failed", engine.report()
""")
    assert done.stderr.count("two.bad is failed") == 1


def test_the_stacks_of_all_threads_are_seen_as_they_are() -> None:
    """A thread that stands still, some generators deep, and the one that looks."""
    ready, over = threading.Event(), threading.Event()

    def deep(depth: int) -> Iterator[int]:
        if depth:
            yield from deep(depth - 1)
        else:
            ready.set()
            over.wait(200)
            yield 0

    thread = threading.Thread(target=lambda: list(deep(3)))
    thread.start()
    assert ready.wait(200)
    stacks = {ident: list(codes) for ident, codes in live_threads._stacks()}
    over.set()
    thread.join(200)
    code = deep.__code__
    assert [each for each in stacks[thread.ident or 0] if each is code] == [code] * 4
    own = test_the_stacks_of_all_threads_are_seen_as_they_are.__code__
    assert own in stacks[threading.get_ident()]
    assert not any(ident == thread.ident for ident, _ in live_threads._stacks())


def test_nothing_is_collected_while_the_stacks_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finaliser gives the GIL up, and a frame that has ended by then is freed memory."""
    collects, current = [], sys._current_frames

    def frames() -> dict[int, FrameType]:
        collects.append(gc.isenabled())
        return current()

    monkeypatch.setattr(sys, "_current_frames", frames)
    assert live_threads.runs_anywhere([frames.__code__])
    assert live_threads.at_rest([frames.__code__], [])
    assert collects == [False, False]
    assert gc.isenabled()
