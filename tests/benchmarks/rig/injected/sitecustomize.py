"""Inside a patched server: show stock's code or ours between requests, on demand.

Every rank serves the files of $RIG_FOLDER: ``command`` holds ``[number, what, …]``, and the outcome
goes to ``done.NUMBER.RANK``. What differs between the sides beside the code, as graphs that each
captured, is done by a module of its own. The ``sitecustomize`` behind this one runs first.
"""

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

import exchanges
import gdn_graphs  # now: a process that multiprocessing spawns loses this folder
import pausing
import ranks
import states
import wrapt

_HERE = os.path.dirname(os.path.abspath(__file__))
_FOLDER = os.environ.get("RIG_FOLDER", "")


class _Switch:
    """Shows one side at a time."""

    def __init__(self, scheduler):
        from sglang_perf_patches.live import engine

        self._stack = contextlib.ExitStack()
        report = engine.report()
        live = [each.id for each in report.patches if each.state == "live"] if report else []
        self.helpers = []
        self.said = {"patches": live}
        for module in (gdn_graphs, states):
            helper = module.Helper.of(scheduler, self)
            if helper is not None:
                self.helpers.append(helper)
        self.show([])

    def show(self, off, side=""):
        """Pause patches; `side` is a word that a helper may know. Returns what is paused."""
        self._stack.close()
        paused = frozenset()
        if off:
            # The helpers answer for graphs; between requests nothing else is held.
            paused = self._stack.enter_context(pausing.paused(*off))
        for helper in self.helpers:
            helper.show(frozenset(off), side)
        if missing := set(off) - paused:
            raise ValueError(f"not live, so not paused: {', '.join(sorted(missing))}")
        return sorted(paused)

    def do(self, what, *details):
        if what == "said":
            return self.said
        if what == "show":
            return self.show(*details)
        for helper in self.helpers:
            if what in helper.does:
                return getattr(helper, what)(*details)
        return None

    def serve(self):
        import torch
        import torch.distributed as dist

        wait, mode = lambda: None, contextlib.nullcontext
        if torch.cuda.is_available():
            wait, mode = torch.cuda.synchronize, torch.inference_mode
        last, rank = None, dist.get_rank() if dist.is_initialized() else 0
        while True:
            time.sleep(0.004)
            try:
                with open(f"{_FOLDER}/command") as file:
                    number, what, *details = json.load(file)
            except (OSError, ValueError):
                continue
            if number == last:
                continue
            last = number
            try:
                with mode():
                    wait()
                    answer = {"answer": self.do(what, *details)}
                    wait()
            except Exception:
                answer = {"error": traceback.format_exc()}
            with open(f"{_FOLDER}/part.{rank}", "w") as file:
                json.dump(answer, file)
            os.rename(f"{_FOLDER}/part.{rank}", f"{_FOLDER}/done.{number}.{rank}")


def _started(wrapped, scheduler, args, kwargs):
    if not hasattr(scheduler, "_rig"):
        scheduler._rig = True  # one event loop may call another one
        try:
            threading.Thread(target=_Switch(scheduler).serve, daemon=True).start()
        except Exception:
            traceback.print_exc()
    return wrapped(*args, **kwargs)


def _hook(module):
    for name in dir(module.Scheduler):
        if name.startswith("event_loop_"):
            wrapt.wrap_function_wrapper(module, f"Scheduler.{name}", _started)


def _go_on():
    """Run the ``sitecustomize`` that this one hides."""
    places = [os.path.abspath(place or ".") for place in sys.path]
    spec = PathFinder.find_spec("sitecustomize", sys.path[places.index(_HERE) + 1 :])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_go_on()  # first: a hook that it puts in front of others hides theirs
ranks.watch()
exchanges.watch()
if _FOLDER and os.environ.get("SGLANG_PERF_PATCHES", "all") not in {"none", "off", "0", ""}:
    wrapt.register_post_import_hook(_hook, "sglang.srt.managers.scheduler")
