"""Runs requests one at a time: one thread works, and no request begins inside another.

A signal handler, a finaliser or an import may call us in the middle of our own code, on the same
thread, where no lock keeps it out. So a request that is made inside another one, or while another
thread is at work, waits in a queue. The outer call, or that thread, runs it before it returns.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .threads import runs_here

_POLL_S = 0.001
_FORK_S = 6.0
"""How long a fork waits for the thread at work, which may itself wait for the one forking."""


class Request:
    """Work that is called once, and what came of it.

    Attributes:
        is_done: whether it was run; also True if it raised an exception.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        self.is_done = False
        self._work = work
        self._result: Any = None
        self._error: Exception | None = None

    def do(self) -> None:
        """Run it; keep its exception for `result`, but let an interruption such as Ctrl-C pass."""
        try:
            self._result = self._work()
        except Exception as error:
            self._error = error
        self.is_done = True

    def result(self) -> Any:
        """What the work returned, or raise what it raised; None if it was not run yet."""
        if self._error is not None:
            raise self._error
        return self._result


class Executor:
    """Runs requests, one after the other.

    Attributes:
        interrupted: called after an interruption has ended a request.
        cut_off: why this forked child can apply no patch; "" if it can.
        leave: called with `cut_off` in such a child.
    """

    def __init__(self) -> None:
        self.interrupted: Callable[[], None] = lambda: None
        self.cut_off = ""
        self.leave: Callable[[str], None] = lambda reason: None
        self._requests: deque[Request] = deque()
        self._lock = threading.RLock()
        self._is_kept = False
        self._is_guarded = False

    def do(self, work: Callable[[], Any], *, wait_s: float = 0) -> Request:
        """Run `work` here, or leave it to the thread at work, which is awaited for `wait_s`.

        Returns:
            the request. If this was called inside another request, or the wait was too short, it
            is not done yet: it runs later.
        """
        self._guard_forks()
        request = Request(work)
        self._requests.append(request)
        if self.is_at_work_here():
            return request
        self.go_on()
        end = time.monotonic() + wait_s
        while not request.is_done and time.monotonic() < end:
            time.sleep(_POLL_S)
            self.go_on()
        return request

    def go_on(self) -> None:
        """Run the waiting requests, unless a thread is at work."""
        while self._requests and not self.is_at_work_here():  # one may come after the lock is free
            if not self._lock.acquire(blocking=False):
                return
            try:
                self._work()
            except BaseException as error:
                if not isinstance(error, Exception):
                    self.interrupted()
                raise

    def has_requests(self) -> bool:
        """Whether a request waits."""
        return bool(self._requests)

    def is_at_work_here(self) -> bool:
        """Whether the caller is inside a request."""
        return runs_here(_WORK)

    def before_fork(self) -> None:
        """Keep requests from running until the fork is over, if the one at work ends in time."""
        if not self.is_at_work_here():
            self._is_kept = self._lock.acquire(timeout=_FORK_S)

    def after_fork(self) -> None:
        """Undo `before_fork`."""
        if self._is_kept:
            self._is_kept = False
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """The same; without the thread that is at work in the parent, stock's code runs.

        That thread may hold the lock of an import, for which the child would wait forever.
        """
        self.after_fork()
        if not self.is_at_work_here():
            was_at_work = not self._lock.acquire(blocking=False)
            self._lock = threading.RLock()
            if was_at_work:
                self.cut_off = "this process was forked while another thread applied patches"
                self.leave(self.cut_off)

    def _guard_forks(self) -> None:
        if not self._is_guarded:
            self._is_guarded = True
            # It takes its own lock at a fork, and must do so after the executor has waited: those
            # registered later wait earlier.
            import logging  # noqa: F401  a process with every patch off need not load it

            os.register_at_fork(
                before=self.before_fork,
                after_in_parent=self.after_fork,
                after_in_child=self.after_fork_in_child,
            )

    def _work(self) -> None:
        try:
            while self._requests:
                self._requests.popleft().do()
        finally:
            # As often as it is held: an interruption between `acquire` and this `try` leaves it
            # held once more, and the lock is reentrant.
            with contextlib.suppress(RuntimeError):
                while True:
                    self._lock.release()


_WORK = (Executor._work.__code__,)

executor = Executor()
"""The executor of this process."""
