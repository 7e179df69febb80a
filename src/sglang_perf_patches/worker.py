"""Child processes of the command that send JSON lines: `Child` starts one, `emit` sends a line.

sglang and its libraries print to stdout too, so our lines are marked. A child is `supervised`: it
ends with everything that it started when its context is left or the parent ends.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .supervised import Supervised

_MARK = "\x1esglang-perf-patches "

# As ``python -m MODULE``, with this package from FOLDER: the child's path may have another copy.
# Another Python may lack wrapt, which is then lent to it.
_START = """
import importlib.machinery, importlib.util, runpy, sys
name, folder, wrapt, module = sys.argv[1:5]
del sys.argv[1:5]
def lend(name, folder):
    spec = importlib.machinery.PathFinder.find_spec(name, [folder])
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
if importlib.util.find_spec("wrapt") is None:
    lend("wrapt", wrapt)
if name not in sys.modules:
    lend(name, folder)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def emit(data: dict[str, Any]) -> None:
    """In a child: send one line to the parent."""
    print(_MARK + json.dumps(data), flush=True)


class Child:
    """A Python child process, as a context manager; iterate over it for what it emits.

    It runs `module` as ``python -m`` does, with every patch off, in this Python or another one.
    After `limit_s` seconds (then it `was_late`), or when the context is left, it ends with all that
    it started.
    """

    def __init__(
        self,
        module: str,
        words: Sequence[str],
        *,
        limit_s: float,
        environment: Mapping[str, str] = os.environ,
        python: Sequence[str] = (sys.executable,),
    ) -> None:
        wrapt = importlib.util.find_spec("wrapt")
        lent = str(Path(wrapt.origin).parents[1]) if wrapt and wrapt.origin else ""
        self._limit_s = limit_s
        self.was_late = False
        self._kept = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        places = __package__, str(Path(__file__).parents[1]), lent
        self._process = Supervised(
            [*python, "-W", "ignore", "-c", _START, *places, module, *words],
            environment={**environment, "SGLANG_PERF_PATCHES": "none"},
            stdout=subprocess.PIPE,
            stderr=self._kept,
        )
        self._timer = threading.Timer(limit_s, self._end_late)
        self._timer.start()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._end()
        if self._process.stdout:
            self._process.stdout.close()
        self._kept.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Each line that it emits, decoded, until it ends; then all that it started ends too."""
        for line in self._process.stdout or ():
            if line.startswith(_MARK):
                data: dict[str, Any] = json.loads(line[len(_MARK) :])
                yield data
        self._end()

    def why_it_ended(self) -> str:
        """Why it ended, in words: the time limit, the last line of its stderr, or its exit code."""
        if self.was_late:
            return f"no end after {self._limit_s:g} s"
        self._kept.seek(0)
        last = self._kept.read().strip().splitlines()[-1:]
        return f"its process ended: {last[0] if last else f'exit code {self._process.code}'}"

    def _end_late(self) -> None:
        self.was_late = True
        self._process.hurry()

    def _end(self) -> None:
        self._process.hurry()
        self._process.end()
