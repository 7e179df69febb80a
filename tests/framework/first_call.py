"""A script for `test_faults`: the first activation of a process, with something in between.

    python first_call.py activates|deactivates|interrupts APART

The first call imports most of the framework. At one in APART of the lines that run in it, those of
modules too, a signal handler's call or a KeyboardInterrupt comes in between (see `places`). Each
attempt is a forked child. Prints a list of what came of each.
"""

import json
import logging
import sys
import traceback
from functools import partial

from places import Places, outcome_of, raising, sampled

import sglang_perf_patches as ours

HAPPENS = {
    "activates": lambda: ours.activate("mla"),
    "deactivates": ours.deactivate,
    "interrupts": raising(KeyboardInterrupt),
}


def is_early():
    """Whether the call is not in the queue yet: then what comes in between is first."""
    queue = sys.modules["sglang_perf_patches.live.executor"].executor
    callers = [frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._getframe())]
    return not ("_work" in callers or queue.has_requests() or ours.report())


def attempt(happens, at):
    """Activate, with something at a line; where that is None, say which lines run."""
    outcome = {"at": at}

    def strike():
        outcome["early"] = is_early()
        happens()

    places = Places(("",), at, strike)
    sys.settrace(places.trace)
    try:
        ours.activate("mla")
    except KeyboardInterrupt:
        outcome["interrupted"] = True
    finally:
        sys.settrace(None)
    if at is None:
        return list(places.times)
    from sglang_perf_patches.live import engine

    outcome["where"] = places.struck
    outcome["on"] = engine.report() is not None
    outcome["later"] = [state.state for state in ours.activate("mla").patches]
    ours.deactivate()
    outcome["off"] = engine.report() is None
    return outcome


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    happens = HAPPENS[sys.argv[1]]
    chosen = sampled(outcome_of(partial(attempt, happens, None)), int(sys.argv[2]))
    runs = [(place, 1) for place in chosen]
    print(json.dumps([outcome_of(partial(attempt, happens, at), at=at) for at in runs]))
