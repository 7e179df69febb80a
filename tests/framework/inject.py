"""A script for `test_faults`: activation with a fault at one place of the framework after another.

    python inject.py raises|kills FOLDERS STEP
    python inject.py FAULT FOLDERS STEP SCENARIO APART

Each attempt is a forked child of its own. ``raises`` and ``kills`` strike at every STEP-th call
that code below the named folders of the framework makes. The others strike at lines of theirs that
run: ``interrupts`` raises a KeyboardInterrupt, ``interrupts-twice`` another one some lines later,
``fails`` a MemoryError; ``deactivates`` and ``activates`` call that, as a signal handler would.
``interrupts`` does so in what changes things at one line of four, the first time that it runs, and
at one in APART the last and each STEP-th time too. Elsewhere, and with the others, it is at one in
APART.
Prints a list of what came of each attempt, the first of which is left alone.
"""

import json
import logging
import os
import signal
import sys
import time

from in_a_fork import said_by
from throwaway_patches import BOTH, HELPER, TEN, use

import sglang_perf_patches as ours
from sglang_perf_patches import plugin, sets  # noqa: F401
from sglang_perf_patches.live import engine
from sglang_perf_patches.seen import records  # noqa: F401

FOLDER = os.path.dirname(ours.__file__)
PATCHES = (TEN, BOTH, HELPER)
# What lets nothing out of the framework can't guard itself.
GUARD = {"_finish", "finish", "_finish_import", "look_again", "_request", "do"}


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


# -- at calls --------------------------------------------------------------------------------------


def activated(watched, at, fault):
    """Activate and import, with a fault at call number `at`."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda entry: messages.append(entry.getMessage())
    logging.getLogger("sglang_perf_patches").addHandler(handler)
    outcome = {"at": at, "calls": 0, "where": None, "messages": messages}

    def profile(frame, event, called):
        caller = {"call": frame.f_back, "c_call": frame}.get(event)
        if caller and is_watched(caller, watched) and caller.f_code.co_name not in GUARD:
            outcome["calls"] += 1
            if outcome["calls"] == at:
                name = called or frame.f_code.co_name
                outcome["where"] = f"{caller.f_code.co_name} calls {name}"
                fault()

    sys.setprofile(profile)
    try:
        plugin.load()
        a, b = modules()
    finally:
        sys.setprofile(None)
    return {**outcome, "states": states(), "effects": effects(a, b)}


def is_watched(frame, watched):
    file = frame.f_code.co_filename
    return file.startswith(FOLDER) and file[len(FOLDER) + 1 :].startswith(watched)


def raises():
    raise RuntimeError("injected")


def kills():
    os.kill(os.getpid(), signal.SIGKILL)


def at_calls(fault, watched, step):
    calls = forked(activated, watched, 0, None)["calls"]
    return [forked(activated, watched, at, fault) for at in range(0, calls + 1, step)]


# -- at lines --------------------------------------------------------------------------------------


class Lines:
    """The lines of the framework that run, in order, and what happens at one of them."""

    def __init__(self, watched, at=None, happens=None, again=0):
        self.watched, self.at, self.happens, self.again = watched, at, happens, again
        self.places = []
        self.struck = None

    def __enter__(self):
        sys.settrace(self.trace)

    def __exit__(self, *_):
        sys.settrace(None)

    def trace(self, frame, event, _):
        if not is_watched(frame, self.watched):
            return None
        if event == "line":
            place = f"{frame.f_code.co_filename[len(FOLDER) + 1 :]}:{frame.f_lineno}"
            self.places.append(place)
            if len(self.places) - 1 == self.at:
                self.struck = self.struck or place
                self.at = self.at + self.again if self.again else None
                self.again = 0
                if self.at is None:
                    sys.settrace(None)
                self.happens(place)
        return self.trace


def interrupt(place):
    raise KeyboardInterrupt(place)


def fail(place):
    raise MemoryError(place)


HAPPENS = {
    "fails": fail,
    "interrupts": interrupt,
    "interrupts-twice": interrupt,
    "deactivates": lambda _: ours.deactivate(),
    "activates": lambda _: ours.activate("all"),
}


def interrupted(watched, scenario, at, fault, again=0):
    """Play a scenario with a fault at one line, then continue."""
    lines = Lines(watched, at, HAPPENS[fault], again)
    outcome = {"scenario": scenario, "at": at, "where": None}
    if scenario == "imported before":
        modules()
    elif scenario == "deactivating":
        modules()
        ours.activate("all")
    try:
        with lines:
            if scenario == "deactivating":
                ours.deactivate()
            else:
                ours.activate("all")
                if scenario == "imported later":
                    modules()
    except (KeyboardInterrupt, MemoryError):
        outcome["interrupted"] = True
    outcome["where"] = lines.struck
    if at is None:
        outcome["places"] = lines.places
    loaded = scenario != "imported later" or {"sglang.srt.a", "sglang.srt.b"} <= set(sys.modules)
    outcome["states"] = states()
    outcome["effects"] = effects(*modules()) if loaded else None
    # What the interrupted caller may do next.
    a, b = modules()
    ours.activate("all")
    outcome["later"] = [states(), effects(a, b)]
    ours.deactivate()
    outcome["off"] = effects(a, b)
    outcome["left"] = [name for name in vars(a) if "sglang_perf_patches" in name]
    return outcome


def at_lines(fault, watched, step, scenario, apart):
    # Every attempt must run the same lines: not with what an earlier one left in the cache folder,
    # nor with files that are too young to be kept at first (see `judge.cache`).
    os.environ["XDG_CACHE_HOME"] = os.environ["TMPDIR"] = os.devnull
    time.sleep(2.5)
    whole = forked(interrupted, watched, scenario, None, fault)
    times = {}
    for at, place in enumerate(whole.pop("places")):
        times.setdefault(place, []).append(at)
    chosen = set()
    for number, (place, of_line) in enumerate(times.items()):
        changes = place.startswith("live")
        if number % apart == 0:
            repeats = changes and fault == "interrupts"
            chosen |= {*of_line[::step], of_line[-1]} if repeats else {of_line[0]}
        elif changes and fault == "interrupts" and number % 4 == 0:
            chosen.add(of_line[0])
    again = [0]
    if fault == "interrupts-twice":  # in what the first one set going
        again = [1, 3, 8, 20, 50, 120]
    return [
        whole,
        *(
            forked(interrupted, watched, scenario, at, fault, again[number % len(again)])
            for number, at in enumerate(sorted(chosen))
        ),
    ]


def forked(attempt, *arguments):
    answer = said_by(
        lambda: json.dumps(attempt(*arguments)),
        lambda trace: json.dumps({"arguments": str(arguments), "traceback": trace}),
    )
    return json.loads(answer) if answer else {"killed": arguments[1]}


if __name__ == "__main__":
    fault, folders, step = sys.argv[1], tuple(sys.argv[2].split(",")), int(sys.argv[3])
    use(*PATCHES)
    if fault in HAPPENS:
        outcomes = at_lines(fault, folders, step, sys.argv[4], int(sys.argv[5]))
    else:
        outcomes = at_calls({"raises": raises, "kills": kills}[fault], folders, step)
    print(json.dumps(outcomes))
