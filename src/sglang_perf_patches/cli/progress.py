"""Progress of long work on stderr: the present step, its number, and the seconds so far."""

from __future__ import annotations

import sys
import threading
import time

_TICK_S = 1.0


class Progress:
    """A context manager that shows steps: on a terminal in one line, elsewhere a line for each.

    Args:
        total: the number of steps.
    """

    def __init__(self, total: int) -> None:
        self._total, self._number, self._what, self._shown = total, 0, "", 0
        self._began = time.monotonic()
        self._lock, self._over = threading.Lock(), threading.Event()
        self._ticking = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Progress:
        self._is_live = sys.stderr.isatty()
        if self._is_live:
            self._ticking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._is_live:
            self._ticking.join()
        self.clear()

    def step(self, what: str) -> None:
        """Show that the next step begins."""
        self._number += 1
        self._what = what
        if self._is_live:
            self._draw()
        else:
            print(f"[{self._number}/{self._total}] {what} ...", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Erase the line, before something is printed to stdout."""
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

    def _tick(self) -> None:
        while not self._over.wait(_TICK_S):
            if self._what:
                self._draw()
