"""Runs requests one at a time: one thread works, and no request begins inside another.

A signal handler, a finaliser or an import may call us in the middle of our own code, on the same
thread, where no lock keeps it out. So a request that is made inside another one, or while another
thread is at work, waits in a queue. The outer call, or that thread, runs it before it returns.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from .threads import runs_here

_POLL_S = 0.001
_FORK_S = 6.0  # how long a fork waits for the thread at work, which may wait for the one forking


class Executor:
    """Runs requests, one after the other."""

    def __init__(self) -> None:
        self.cut_off = ""  # why this forked child applies no patch
        self._requests: deque[tuple[Callable[[], Any], list[Any]]] = deque()
        self._lock = threading.RLock()
        self._is_guarded = False

    def do(self, work: Callable[[], Any], *, wait_s: float = 0) -> Any:
        """Run `work` here, or leave it to the thread at work, which is awaited for `wait_s`.

        Returns what it returned, or raises what it raised. None if this was called inside another
        request, or if the wait was too short: then it runs later.
        """
        self._guard_forks()
        outcome: list[Any] = []  # what it returned, and what it raised
        self._requests.append((work, outcome))
        if self.is_at_work_here():
            return None
        self.go_on()
        end = time.monotonic() + wait_s
        while not outcome and time.monotonic() < end:
            time.sleep(_POLL_S)
            self.go_on()
        result, error = outcome or (None, None)
        if error is not None:
            raise error
        return result

    def go_on(self) -> None:
        """Run the waiting requests, unless a thread is at work."""
        while self._requests and not self.is_at_work_here():  # one may come after the lock is free
            if not self._lock.acquire(blocking=False):
                return
            self._work()

    def has_requests(self) -> bool:
        """Whether a request waits."""
        return bool(self._requests)

    def is_at_work_here(self) -> bool:
        """Whether the caller is inside a request."""
        return runs_here(_WORK)

    def _guard_forks(self) -> None:
        if not self._is_guarded:
            self._is_guarded = True
            # Its own lock must be taken after the executor has waited: what is registered later
            # waits earlier. A process with every patch off need not load it.
            import logging  # noqa: F401

            os.register_at_fork(
                before=self._before_fork,
                after_in_parent=self._after_fork,
                after_in_child=self._after_fork_in_child,
            )

    def _before_fork(self) -> None:
        """Keep requests from running until the fork is over, if the one at work ends in time."""
        self._lock.acquire(timeout=_FORK_S)  # at once if this thread is at work

    def _after_fork(self) -> None:
        with contextlib.suppress(RuntimeError):  # it did not end in time
            self._lock.release()

    def _after_fork_in_child(self) -> None:
        self._after_fork()
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            # Without the thread that is at work in the parent, stock's code runs: that thread may
            # hold the lock of an import, for which the child would wait forever.
            self.cut_off = "this process was forked while another thread applied patches"
            self._lock = threading.RLock()

    def _work(self) -> None:
        try:
            while self._requests:
                work, outcome = self._requests.popleft()
                try:
                    outcome += work(), None
                except Exception as error:  # an interruption such as Ctrl-C passes
                    outcome += None, error
        finally:
            # An interruption between `acquire` and this `try` leaves the lock held once more.
            with contextlib.suppress(RuntimeError):
                while True:
                    self._lock.release()


_WORK = (Executor._work.__code__,)
executor = Executor()


def end_process(line: str) -> NoReturn:
    """Write a line to stderr and end the process with exit code 1, from any thread, for STRICT.

    ``atexit`` handlers don't run. Children that multiprocessing started here are killed too.
    """
    # An exception would not do: in another thread or in an import it ends nothing, and sglang may
    # swallow it. A child that has just begun does not yet watch its parent, and would wait forever.
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    try:
        print(line, file=sys.stderr, flush=True)
        for child in getattr(sys.modules.get("multiprocessing"), "active_children", tuple)():
            with contextlib.suppress(Exception):  # after a fork it may be the parent's
                if child.is_alive():
                    child.kill()
    finally:
        os._exit(1)
