"""A script for `test_keeper`: signal handlers in the middle of the standard library's code.

At each line of the keeper's, and of the threading module's, that an activation and its end run, a
call of ours comes in between, as a signal handler's would. Each attempt is a forked child, which an
alarm ends where it hangs. Prints how many there were; an attempt that fails says why.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

from in_a_fork import said_by
from throwaway_patches import STEP, use

import sglang_perf_patches as ours
from sglang_perf_patches.live import engine
from sglang_perf_patches.seen import keeper

WATCHED = (keeper.__file__, threading.__file__)


def again() -> None:
    ours.deactivate()
    ours.activate("all")


def attempt(happens: Callable[[], None], at: int | None) -> int:
    import sglang.srt.a as a

    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line":
            count += 1
            if count - 1 == at:
                sys.settrace(None)
                happens()
        return trace

    sys.settrace(trace)
    ours.activate("all")
    ours.deactivate()
    sys.settrace(None)
    if at is None:
        return count
    ours.activate("all")
    assert engine.report().of("one.step").state == "live", engine.report()
    assert a.Worker().step(1) == 102
    (of_now,) = keeper._keepers
    deadline = time.monotonic() + 10
    while not of_now.path.exists():  # the tick brings back what an earlier end took
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ours.deactivate()
    assert engine.report() is None
    assert a.Worker().step(1) == 2
    assert not of_now.path.exists()
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(5)
    assert threading.active_count() == 1, threading.enumerate()
    return 0


def forked(happens: Callable[[], None], at: int | None) -> str:
    def limited() -> str:
        signal.alarm(20)
        return str(attempt(happens, at))

    return said_by(limited)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    use(STEP)
    lines = int(forked(again, None))
    tried = range(0, lines, int(sys.argv[1]))
    for happens in (again, ours.deactivate):
        for at in tried:
            said = forked(happens, at)
            assert said == "0", (happens, at, said or "it hangs")
    print(len(tried))
