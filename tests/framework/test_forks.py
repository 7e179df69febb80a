"""A fork while another thread is at work: neither process hangs, and each says what it runs."""

from __future__ import annotations

from throwaway import Throwaway

HEAD = """
import faulthandler, os, signal, threading, time, warnings
warnings.simplefilter("ignore")
faulthandler.dump_traceback_later(60, exit=True)
from throwaway_patches import *
import sglang_perf_patches as ours
from sglang_perf_patches.live import engine

def forked(does):
    start = time.monotonic()
    child = os.fork()
    if not child:
        signal.alarm(20)       # ends it where it hangs
        try:
            does()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    took = time.monotonic() - start
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return took
"""

IMPORTING = """
import meeting
use(declare("one.step", install="step", targets=(f"{A}:Worker.step",)))
import sglang_perf_patches.model.patch as patch
def load(variant):
    import slow_install
    return slow_install.step
patch.Variant.load = load
import sglang.srt.a as a
thread = threading.Thread(target=ours.activate, args=("all",))
thread.start()
assert meeting.begun.wait(30)
"""


def put_slow_install(throwaway: Throwaway, seconds: float) -> None:
    throwaway.put("meeting.py", "import threading\nbegun = threading.Event()\n")
    throwaway.put(
        "slow_install.py",
        f"import meeting, time\nmeeting.begun.set()\ntime.sleep({seconds})\n"
        "from throwaway_installs import step\n",
    )


def test_a_fork_waits_for_an_import_of_our_code(throwaway: Throwaway) -> None:
    put_slow_install(throwaway, 1)
    throwaway.run(
        HEAD
        + IMPORTING
        + """
def does():
    assert ours.activate().of("one.step").state == "live", ours.activate()
    assert a.Worker().step(1) == 102
forked(does)
thread.join(30)
assert a.Worker().step(1) == 102
"""
    )


def test_a_child_that_can_t_have_our_code_runs_stock_s(throwaway: Throwaway) -> None:
    """It would wait for ever for an import of a thread that it does not have."""
    put_slow_install(throwaway, 6)
    throwaway.run(
        HEAD
        + IMPORTING
        + """
engine._FORK_WHILE_IMPORTING_S = 0.2
def does():
    import sglang.srt.b
    state = ours.activate().of("one.step")
    assert state.state == "failed" and "was forked while" in state.reason, state
    assert a.Worker().step(1) == 2
took = forked(does)
assert took < 2, took
thread.join(30)
assert ours.activate().of("one.step").state == "live" and a.Worker().step(1) == 102
"""
    )


def test_a_fork_does_not_wait_for_judging(throwaway: Throwaway) -> None:
    throwaway.run(
        HEAD
        + """
use(STEP)
import sglang.srt.a as a
judging, go_on = threading.Event(), threading.Event()
judge_each = engine.judge_each
def slow(*args, **more):
    judging.set()
    assert go_on.wait(30)
    return judge_each(*args, **more)
engine.judge_each = slow
thread = threading.Thread(target=ours.activate, args=("all",))
thread.start()
assert judging.wait(30)
def does():
    go_on.set()
    assert ours.activate("all").of("one.step").state == "live"
    assert a.Worker().step(1) == 102
took = forked(does)
assert took < 0.9, took
go_on.set()
thread.join(30)
assert a.Worker().step(1) == 102
"""
    )
