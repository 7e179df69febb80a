"""A script for `test_recorder`: signal handlers in the middle of the standard library's code.

At each line of the recorder's, and of the threading module's, that an activation and its end run, a
call of ours comes in between, as a signal handler's would. Each attempt is a forked child, which an
alarm ends where it hangs. Prints how many there were; an attempt that fails says why.
"""

import logging
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial

from places import Places, Run, outcome_of, sampled
from throwaway_patches import STEP, use

import sglang_perf_patches as ours
from sglang_perf_patches.live import engine
from sglang_perf_patches.telemetry import recorder

WATCHED = (recorder.__file__, threading.__file__)


def again() -> None:
    ours.deactivate()
    ours.activate("all")


def attempt(happens: Callable[[], None], at: Run | None) -> str | list[str]:
    """The place that was struck, if one was; all places that run where `at` is None."""
    signal.alarm(120)
    import sglang.srt.a as a

    places = Places(WATCHED, at, happens)
    sys.settrace(places.trace)
    ours.activate("all")
    ours.deactivate()
    sys.settrace(None)
    if at is None:
        return list(places.times)
    ours.activate("all")
    assert engine.report().of("one.step").state == "live", engine.report()
    assert a.Worker().step(1) == 102
    (of_now,) = recorder._recorders
    deadline = time.monotonic() + 60
    while not of_now.path.exists():  # the tick brings back what an earlier end took
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ours.deactivate()
    assert engine.report() is None
    assert a.Worker().step(1) == 2
    assert not of_now.path.exists()
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(60)
    assert threading.active_count() == 1, threading.enumerate()
    return places.struck or "not run"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    use(STEP)
    chosen = sampled(outcome_of(partial(attempt, again, None)), int(sys.argv[1]))
    struck = 0
    for happens in (again, ours.deactivate):
        for place in chosen:
            said = outcome_of(partial(attempt, happens, (place, 1)))
            # A line that only a slow machine runs may not run again.
            assert said in (place, "not run"), (happens, place, said)
            struck += said == place
    assert struck > 0.9 * 2 * len(chosen), (struck, len(chosen))
    print(len(chosen))
