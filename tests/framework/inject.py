"""A script for `test_faults`: activation with a fault at one call after the other.

    python inject.py raises|kills MODULE,MODULE STEP

Each activation is a forked child of its own, and the fault comes at every STEP-th call that the
named modules of the framework make. Prints a list of what came of each.
"""

import json
import logging
import os
import signal
import sys
import traceback

from throwaway_patches import BOTH, HELPER, TEN, use

import sglang_perf_patches
from sglang_perf_patches import plugin, sets  # noqa: F401
from sglang_perf_patches.judge import source, verdict  # noqa: F401
from sglang_perf_patches.live import engine as activation

FOLDER = os.path.dirname(sglang_perf_patches.__file__)
# What lets nothing out of the framework can't guard itself.
GUARD = {"imported", "guarded"}


def effects(a, b):
    """What each patch does in this process: True, False, or what is there of it."""
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


def activated(watched, at, fault):
    """Activate and import, with a fault at call number `at`."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda entry: said.append(entry.getMessage())
    logging.getLogger("sglang_perf_patches").addHandler(handler)
    found = {"at": at, "calls": 0, "where": None, "said": said}

    def profile(frame, event, called):
        caller = {"call": frame.f_back, "c_call": frame}.get(event)
        if caller and caller.f_code.co_filename in watched and caller.f_code.co_name not in GUARD:
            found["calls"] += 1
            if found["calls"] == at:
                found["where"] = f"{caller.f_code.co_name} calls {called or frame.f_code.co_name}"
                fault()

    sys.setprofile(profile)
    try:
        plugin.load()
        import sglang.srt.a as a
        import sglang.srt.b as b
    finally:
        sys.setprofile(None)
    report = activation.report()
    found["states"] = {state.id: state.state for state in report.patches} if report else {}
    found["effects"] = effects(a, b)
    return found


def forked(watched, at, fault):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            found = activated(watched, at, fault)
        except BaseException:
            found = {"at": at, "traceback": traceback.format_exc()}
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"at": at}


def raises():
    raise RuntimeError("injected")


def kills():
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    fault, modules, step = sys.argv[1:]
    watched = {os.path.join(FOLDER, f"{name}.py") for name in modules.split(",")}
    use(TEN, BOTH, HELPER)
    calls = forked(watched, 0, None)["calls"]
    faults = {"raises": raises, "kills": kills}
    outcomes = [forked(watched, at, faults[fault]) for at in range(0, calls + 1, int(step))]
    print(json.dumps(outcomes))
