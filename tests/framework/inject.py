"""A script for `test_faults`: activation with a fault at one place of the framework after another.

    python inject.py raises|kills FOLDERS APART
    python inject.py FAULT FOLDERS APART SCENARIO

Each attempt is a forked child of its own, which an alarm ends where it hangs. ``raises`` and
``kills`` strike at calls that code below the named folders of the framework makes. The others
strike at lines of theirs that run: ``interrupts`` raises a KeyboardInterrupt, ``interrupts-twice``
another one some lines later, ``fails`` a MemoryError; ``deactivates``, ``activates`` and ``again``
(both) call that, as a signal handler would.

At APART 0 each place is struck, by ``interrupts`` several times; else one of one in APART functions
of each file, and more of what switches (see `places`).
Prints a list of what came of each attempt, the first of which is left alone.
"""

import itertools
import json
import logging
import os
import signal
import sys
import threading
import time

from places import Places, of_all, of_functions, outcome_of, raising
from throwaway_patches import BOTH, HELPER, TEN, use

import sglang_perf_patches as ours
from sglang_perf_patches import plugin, sets  # noqa: F401
from sglang_perf_patches.live import engine
from sglang_perf_patches.telemetry import recorder

PATCHES = (TEN, BOTH, HELPER)
# What lets nothing out can't guard itself.
UNGUARDED = ("_finish", "finish", "look_again", "_request", "do")


def effects(a, b):
    """What each patch does in this process: True, False, or as much as there is of it."""
    step = a.Worker().step(1)
    of_ten, of_both = {2: (False, False), 20: (True, False), 102: (False, True), 120: (True, True)}[
        step
    ]
    both = {of_both, hasattr(a.Worker, "extra"), b.Caller().call(1) == step + 1}
    return {
        "one.ten": of_ten,
        "two.both": of_both if len(both) == 1 else "between",
        "two.helper": {(1, 6): False, (1001, 1006): True}.get((a.helper(1), b.use(3)), "between"),
    }


def states():
    report = engine.report()
    return {state.id: state.state for state in report.patches} if report else {}


def modules():
    import sglang.srt.a as a
    import sglang.srt.b as b

    return a, b


def struck_one_by_one(attempt, fault, watched, apart, *scenario):
    whole = forked(attempt, watched, None, fault, 0, *scenario)
    times = whole.pop("times", {})
    if apart:
        runs = of_functions(times, apart, fault + "".join(scenario))
    else:
        runs = of_all(times, later=fault == "interrupts")
    # The second interruption comes in what the first one set going.
    again = [1, 3, 8, 20, 50, 120] if fault == "interrupts-twice" else [0]
    return [
        whole,
        *(
            forked(attempt, watched, at, fault, later, *scenario)
            for at, later in zip(runs, itertools.cycle(again))
        ),
    ]


def again():
    ours.deactivate()
    ours.activate("all")


HAPPENS = {
    "raises": raising(RuntimeError("injected")),
    "kills": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "fails": raising(MemoryError),
    "interrupts": raising(KeyboardInterrupt),
    "interrupts-twice": raising(KeyboardInterrupt),
    "deactivates": ours.deactivate,
    "activates": lambda: ours.activate("all"),
    "again": again,
}


def activated(watched, at, fault, _):
    """Activate and import, with a fault at a call."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda entry: messages.append(entry.getMessage())
    logging.getLogger("sglang_perf_patches").addHandler(handler)
    places = Places(watched, at, HAPPENS[fault], unguarded=UNGUARDED)
    sys.setprofile(places.profile)
    try:
        plugin.load()
        a, b = modules()
    finally:
        sys.setprofile(None)
    return {
        "where": places.struck,
        "messages": messages,
        "states": states(),
        "effects": effects(a, b),
        **({} if at else {"times": places.times}),
    }


def interrupted(watched, at, fault, again, scenario):
    """Play a scenario with a fault at one line, then continue."""
    places = Places(watched, at, HAPPENS[fault], again=again)
    outcome = {"scenario": scenario}
    if scenario != "imported later":
        modules()
    if scenario == "deactivating":
        ours.activate("all")
    sys.settrace(places.trace)
    try:
        if scenario != "deactivating":
            ours.activate("all")
        if scenario == "imported later":
            modules()
        elif scenario != "imported before":
            ours.deactivate()
    except (KeyboardInterrupt, MemoryError):
        outcome["interrupted"] = True
    finally:
        sys.settrace(None)
    outcome["where"] = places.struck
    if not at:
        outcome["times"] = places.times
    loaded = scenario != "imported later" or {"sglang.srt.a", "sglang.srt.b"} <= set(sys.modules)
    outcome["states"] = states()
    outcome["effects"] = effects(*modules()) if loaded else None
    # What the interrupted caller may do next.
    a, b = modules()
    ours.activate("all")
    outcome["later"] = [states(), effects(a, b)]
    if scenario == "on and off":
        (of_now,) = recorder._recorders
        while not of_now.path.exists():  # the tick brings back what an earlier end took
            time.sleep(0.01)
    # Another thread does it: whatever came in between has left no lock to this one.
    other = threading.Thread(target=ours.deactivate)
    other.start()
    other.join()
    if scenario == "on and off":
        assert engine.report() is None
        assert not of_now.path.exists()
        while threading.active_count() > 1:
            time.sleep(0.01)
    outcome["off"] = effects(a, b)
    outcome["left"] = [name for name in vars(a) if "sglang_perf_patches" in name]
    return outcome


def forked(attempt, *arguments):
    def limited():
        signal.alarm(300)
        return attempt(*arguments)

    return outcome_of(limited, arguments=str(arguments)) or {"killed": arguments[1]}


if __name__ == "__main__":
    fault, folders, apart, *scenario = sys.argv[1:]
    use(*PATCHES)
    outcomes = struck_one_by_one(
        interrupted if scenario else activated,
        fault,
        tuple(folders.split(",")),
        int(apart),
        *scenario,
    )
    print(json.dumps(outcomes))
