"""The places of the framework that run, which of them are struck, and what happens there."""

import json
import linecache
import os
import sys
import tempfile
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any

import sglang_perf_patches as ours

_FOLDER = os.path.dirname(ours.__file__) + os.sep
_LATER = (2, 5, 17)
_SWITCHING = (
    *("plugin.py:load", "model/switch.py"),  # before anything guards them
    *("live/registry.py:Registry.show", "live/switch.py:exchange"),
    *("live/threads.py:at_rest", "live/threads.py:_in_one_call"),
    *("live/executor.py:Executor.go_on", "live/executor.py:Executor._work"),  # hold its lock
)

Run = tuple[str, int]
"""A place, ``file:function:what is there``, and how often it has run then."""


class Places:
    """Counts the runs of each place, and strikes at one.

    Each place has its own count: code that polls or tries again runs more often on a busy machine,
    so that the number of all lines before a place differs from one process to the next.
    """

    def __init__(
        self,
        watched: tuple[str, ...],
        at: Run | None,
        happens: Callable[[], object],
        *,
        again: int = 0,
        unguarded: Iterable[str] = (),
    ) -> None:
        """Strike at a run, if any, and if `again` is not 0, once more so many places later.

        `watched` is how the paths of the files begin, below our package or from the root. Calls of
        the functions `unguarded` do not count.
        """
        self._watched = tuple(os.path.join(_FOLDER, each) for each in watched)
        self._at, self._happens, self._again = at, happens, again
        self._unguarded = frozenset(unguarded)
        self.times: Counter[str] = Counter()
        self.struck: str | None = None  # the place

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not self._is_watched(frame):
            return None
        if event == "line" and not _is_out_of_reach(frame):
            self._run(frame, str(frame.f_lineno))
        return self.trace

    def profile(self, frame: FrameType, event: str, called: Any) -> None:
        caller = {"call": frame.f_back, "c_call": frame}.get(event)
        if caller and self._is_watched(caller) and caller.f_code.co_name not in self._unguarded:
            self._run(caller, getattr(called, "__name__", frame.f_code.co_name))

    def _run(self, frame: FrameType, what: str) -> None:
        code = frame.f_code
        function = getattr(code, "co_qualname", code.co_name)
        place = f"{code.co_filename.removeprefix(_FOLDER)}:{function}:{what}"
        self.times[place] += 1
        if self.struck:
            self._again -= 1
            is_due = self._again == 0
        else:
            is_due = (place, self.times[place]) == self._at
            self.struck = place if is_due else None
        if is_due:
            if self._again <= 0:
                sys.settrace(None)
            self._happens()

    def _is_watched(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(self._watched)


def raising(error: BaseException | type[BaseException]) -> Callable[[], object]:
    def strike() -> None:
        raise error

    return strike


def _is_out_of_reach(frame: FrameType) -> bool:
    """Whether no signal can come here: a ``with`` calls ``__exit__``, or a ``try`` begins.

    Python handles a signal after a call or at a jump back. What is raised here all the same would
    leave a lock of the ``with`` held, as no handler covers these instructions.
    """
    code, line = frame.f_code, frame.f_lineno
    text = linecache.getline(code.co_filename, line).lstrip()
    if text.startswith("with "):
        return frame.f_lasti > min(start for start, _, of in code.co_lines() if of == line)
    return text.startswith("try:")


def sampled(names: Iterable[str], apart: int, salt: str = "") -> list[str]:
    """One of so many names: a name more or less changes little in what is chosen."""
    ordered = sorted(names, key=lambda name: (zlib.crc32(f"{salt}{name}".encode()), name))
    return ordered[: -(-len(ordered) // apart)]


def of_functions(times: Mapping[str, int], apart: int, salt: str) -> list[Run]:
    """The first run of a line of one in so many functions of each file, and of `_SWITCHING`."""
    files: dict[str, dict[str, list[str]]] = {}
    for place in times:
        file, function, _ = place.split(":")
        files.setdefault(file, {}).setdefault(function, []).append(place)
    chosen = sampled([place for place in times if place.startswith(_SWITCHING)], 4, salt)
    for functions in files.values():
        for function in sampled(functions, apart, salt):
            chosen += sampled(functions[function], len(functions[function]), salt)
    return [(place, 1) for place in dict.fromkeys(chosen)]


def of_all(times: Mapping[str, int], *, later: bool) -> list[Run]:
    """Each place the first time that it runs, and the last and some others if `later`."""
    return [
        (place, run)
        for place, most in times.items()
        for run in sorted({1, most, *_LATER} if later else {1})
        if run <= most
    ]


def outcome_of(attempt: Callable[[], Any], **about: Any) -> Any:
    """What `attempt` returns, as JSON has it, in a child of its own with an empty cache folder.

    If one attempt kept what it read of sglang, the next would not run the code that reads it.
    Where it raises, this returns `about` and the ``traceback``; None where the child is killed.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
        try:
            answer = attempt()
        except BaseException:
            answer = {**about, "traceback": traceback.format_exc()}
        with os.fdopen(writing, "w") as file:
            json.dump(answer, file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else None
