"""A fork while another thread is at work: neither process hangs, and each says what it runs."""

import pytest
from throwaway import Throwaway

FORKED = """
import signal
from sglang_perf_patches.live import executor
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
def install(patching):
    import slow_install
    installs.step(patching)
def make(patching):
    def slow(inner):
        import slow_install
        return lambda self, x: inner(self, x) + 100
    patching.override(f"{A}:Worker.step", slow)
install = {"the body": install, "what the body makes": make}[WHAT]
use(declare("one.step", install=install, targets=(f"{A}:Worker.step",)))
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
WHAT, executor._FORK_S = "the body", 30
{PREPARING}
def does():
    assert ours.activate().of("one.step").state == "live", ours.activate()
    assert a.Worker().step(1) == 102
threading.Timer(0.2, meeting.go_on.set).start()
forked(does)
thread.join(200)
assert a.Worker().step(1) == 102
""")


@pytest.mark.parametrize("what", ["the body", "what the body makes"])
def test_a_child_that_can_t_have_our_code_runs_stock_s(slow: Throwaway, what: str) -> None:
    """It would wait for ever for an import of a thread that it does not have."""
    slow.play(f"""{FORKED}
WHAT, executor._FORK_S = {what!r}, 0.2
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


def test_a_child_without_the_thread_that_judges_runs_stock_s(throwaway: Throwaway) -> None:
    throwaway.play(f"""{FORKED}
use(STEP)
import sglang.srt.a as a
judging, go_on = threading.Event(), threading.Event()
judge_each = engine.judge_each
def slow(*args, **more):
    judging.set()
    assert go_on.wait(200)
    return judge_each(*args, **more)
engine.judge_each, executor._FORK_S = slow, 0.2
thread = threading.Thread(target=ours.activate, args=("all",))
thread.start()
assert judging.wait(200)
def does():
    try:
        ours.activate("all")
    except RuntimeError as error:
        assert "was forked while" in str(error)
        assert a.Worker().step(1) == 2
        return
    raise AssertionError
forked(does)
go_on.set()
thread.join(200)
assert a.Worker().step(1) == 102
""")


FIRST = """
import meeting
from throwaway_patches import *
import os, signal, threading, time, warnings
warnings.simplefilter("ignore")
import sglang_perf_patches as ours
from sglang_perf_patches.live import executor
import slow_finder
use(STEP)
import sglang.srt.a as a
thread = threading.Thread(target=ours.activate, args=("one.step",))
thread.start()
assert meeting.begun.wait(200)
"""
"""Another thread is importing the engine for the first time in this process."""


@pytest.fixture
def slow_engine(slow: Throwaway) -> Throwaway:
    """Whose import of the engine waits in the middle."""
    slow.put(
        "slow_finder.py",
        """
import sys
from importlib.machinery import PathFinder
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "sglang_perf_patches.live.registry":
            return None
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module
        def slow(module):
            import slow_install
            execute(module)
        spec.loader.exec_module = slow
        return spec
sys.meta_path.insert(0, Finder())
""",
    )
    return slow


def test_a_fork_waits_for_the_first_import_of_the_engine(slow_engine: Throwaway) -> None:
    slow_engine.run(f"""{FIRST}
executor._FORK_S = 100
threading.Timer(0.3, meeting.go_on.set).start()
began = time.monotonic()
child = os.fork()
if not child:
    signal.alarm(100)
    os._exit(0 if ours.activate("one.step").of("one.step").state == "live" else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
thread.join(200)
assert a.Worker().step(1) == 102
""")


@pytest.mark.parametrize("strict", [False, True])
def test_a_child_without_the_engine_says_so_at_once(slow_engine: Throwaway, strict: bool) -> None:
    done = slow_engine.run(
        f"""{FIRST}
executor._FORK_S = 0.2
child = os.fork()
if not child:
    signal.alarm(20)
    assert ours.report() is None
    ours.deactivate()
    from sglang_perf_patches import plugin
    plugin.load()
    try:
        ours.activate("one.step")
    except RuntimeError as error:
        assert "was forked while" in str(error)
        os._exit(3 if a.Worker().step(1) == 2 else 4)
    os._exit(5)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert code == (1 if {strict} else 3), code
meeting.go_on.set()
thread.join(200)
assert a.Worker().step(1) == 102
""",
        SGLANG_PERF_PATCHES="one.step",
        SGLANG_PERF_PATCHES_STRICT="1" if strict else None,
    )
    assert done.stderr.count("no patch is applied: this process was forked") == 1
