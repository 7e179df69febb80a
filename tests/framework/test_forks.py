"""A fork while another thread is at work: neither process hangs, and each says what it runs."""

from __future__ import annotations

import pytest
from throwaway import Throwaway

FORKED = """
import signal
warnings.simplefilter("ignore")

def forked(does):
    child = os.fork()
    if not child:
        signal.alarm(200)      # ends it where it hangs
        try:
            does()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""

PREPARING = """
import meeting
use(STEP)
import sglang_perf_patches.model.patch as patch
def load(variant):
    import slow_install
    return installs.step
def install(patching):
    import slow_install
    installs.step(patching)
def make(patching):
    def slow(inner):
        import slow_install
        return lambda self, x: inner(self, x) + 100
    patching.override(f"{A}:Worker.step", slow)
patch.Variant.load = load if WHAT == "the module of the body" else lambda _: BODIES[WHAT]
BODIES = {"the body": install, "what the body makes": make}
import sglang.srt.a as a
thread = threading.Thread(target=ours.activate, args=("all",))
thread.start()
assert meeting.begun.wait(200)
"""


@pytest.fixture
def slow(throwaway: Throwaway) -> Throwaway:
    """With a module that our code imports, which waits in the middle of that."""
    throwaway.put(
        "meeting.py", "import threading\nbegun, go_on = threading.Event(), threading.Event()\n"
    )
    throwaway.put(
        "slow_install.py", "import meeting\nmeeting.begun.set()\nmeeting.go_on.wait(200)\n"
    )
    return throwaway


def test_a_fork_waits_for_an_import_of_our_code(slow: Throwaway) -> None:
    slow.play(f"""{FORKED}
WHAT, engine._FORK_WHILE_PREPARING_S = "the module of the body", 30
{PREPARING}
def does():
    assert ours.activate().of("one.step").state == "live", ours.activate()
    assert a.Worker().step(1) == 102
threading.Timer(0.2, meeting.go_on.set).start()
forked(does)
thread.join(200)
assert a.Worker().step(1) == 102
""")


@pytest.mark.parametrize("what", ["the module of the body", "the body", "what the body makes"])
def test_a_child_that_can_t_have_our_code_runs_stock_s(slow: Throwaway, what: str) -> None:
    """It would wait for ever for an import of a thread that it does not have."""
    slow.play(f"""{FORKED}
WHAT, engine._FORK_WHILE_PREPARING_S, engine._FORK_S = {what!r}, 0.2, 0.2
{PREPARING}
def does():
    import sglang.srt.b
    state = ours.activate().of("one.step")
    assert state.state == "failed" and "was forked while" in state.reason, state
    assert a.Worker().step(1) == 2
forked(does)
meeting.go_on.set()
thread.join(200)
assert ours.activate().of("one.step").state == "live" and a.Worker().step(1) == 102
""")


def test_a_child_judges_by_itself_if_the_thread_that_did_is_not_there(throwaway: Throwaway) -> None:
    throwaway.play(f"""{FORKED}
use(STEP)
import sglang.srt.a as a
judging, go_on = threading.Event(), threading.Event()
judge_each = engine.judge_each
def slow(*args, **more):
    judging.set()
    assert go_on.wait(200)
    return judge_each(*args, **more)
engine.judge_each, engine._FORK_S = slow, 0.2
thread = threading.Thread(target=ours.activate, args=("all",))
thread.start()
assert judging.wait(200)
def does():
    go_on.set()
    assert ours.activate("all").of("one.step").state == "live"
    assert a.Worker().step(1) == 102
forked(does)
go_on.set()
thread.join(200)
assert a.Worker().step(1) == 102
""")
