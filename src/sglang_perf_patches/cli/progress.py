"""Progress of long work on stderr: what is going on, how many of how many, and for how long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_TICK_S = 1.0


class Progress:
    """A line that is rewritten on a terminal; elsewhere one line for each step."""

    def __init__(self, total: int, *, in_lines: bool = False) -> None:
        """Nothing is done yet.

        Args:
            total: how many steps there are.
            in_lines: whether a terminal gets lines too, because others write to it meanwhile.
        """
        self._total = total
        self._number = 0
        self._what = ""
        self._began = time.monotonic()
        self._is_live = sys.stderr.isatty() and not in_lines
        self._lock = threading.Lock()
        self._shown = 0

    def step(self, what: str) -> None:
        """The next step begins."""
        self._number += 1
        self._what = what
        if self._is_live:
            self._draw()
        else:
            print(f"[{self._number}/{self._total}] {what} ...", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Make room for a line of stdout."""
        if self._is_live:
            with self._lock:
                print(f"\r{' ' * self._shown}\r", end="", file=sys.stderr, flush=True)
                self._shown = 0

    def _draw(self) -> None:
        seconds = int(time.monotonic() - self._began)
        text = f"[{self._number}/{self._total}] {self._what} ... {seconds // 60}:{seconds % 60:02}"
        with self._lock:
            print(f"\r{text.ljust(self._shown)}", end="", file=sys.stderr, flush=True)
            self._shown = len(text)

    def _tick(self, over: threading.Event) -> None:
        while not over.wait(_TICK_S):
            if self._what:
                self._draw()


@contextmanager
def progress(total: int, *, in_lines: bool = False) -> Iterator[Progress]:
    """Progress within the context; a line that is rewritten disappears at its end."""
    shown = Progress(total, in_lines=in_lines)
    over = threading.Event()
    thread = threading.Thread(target=shown._tick, args=(over,), daemon=True)
    if shown._is_live:
        thread.start()
    try:
        yield shown
    finally:
        over.set()
        if shown._is_live:
            thread.join()
        shown.clear()
