"""A script for `test_faults`: the first activation of a process, with something in between.

    python first_call.py activates|deactivates|interrupts APART

The first call imports most of the framework. At one in APART of the lines that run in it, those of
modules too, a signal handler's call or a KeyboardInterrupt comes in between (see `places`). Each
attempt is a forked child. Prints a list of what came of each.
"""

import json
import logging
import sys

from in_a_fork import said_by
from places import Places, sampled

import sglang_perf_patches as ours


def interrupt():
    raise KeyboardInterrupt


HAPPENS = {
    "activates": lambda: ours.activate("mla"),
    "deactivates": ours.deactivate,
    "interrupts": interrupt,
}


def is_early():
    """Whether the call is not in the queue yet: then what comes in between is first."""
    frame = sys._getframe()
    queue = sys.modules["sglang_perf_patches.live.executor"].executor
    is_at_work = False
    while frame is not None:
        is_at_work = is_at_work or frame.f_code.co_name == "_work"
        frame = frame.f_back
    return not (is_at_work or queue.has_requests() or ours.report())


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


def forked(happens, at):
    answer = said_by(
        lambda: json.dumps(attempt(happens, at)),
        lambda trace: json.dumps({"at": at, "traceback": trace}),
    )
    return json.loads(answer)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    happens = HAPPENS[sys.argv[1]]
    chosen = sampled(forked(happens, None), int(sys.argv[2]))
    print(json.dumps([forked(happens, (place, 1)) for place in chosen]))
