"""Runs requests one at a time: one thread works, and no request begins inside another.

A signal handler, a finaliser or an import may call us in the middle of our own code, on the same
thread, where no lock keeps it out. So a request that is made inside another one, or while another
thread is at work, waits in a queue. The outer call, or that thread, runs it before it returns.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .dispatch_table import runs_here

_POLL_S = 0.001


class Request:
    """Work, and its result.

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
        """What the work returned; None if it was not run yet.

        Raises:
            Exception: whatever the work raised.
        """
        if self._error is not None:
            raise self._error
        return self._result


class Executor:
    """Runs requests, one after the other.

    Attributes:
        afterwards: called outside of any request, after some have run.
        interrupted: called instead, after an interruption has ended one.
    """

    def __init__(self) -> None:
        self.afterwards: Callable[[], None] = lambda: None
        self.interrupted: Callable[[], None] = lambda: None
        self._requests: deque[Request] = deque()
        self._lock = threading.RLock()
        self._is_kept = False

    def do(self, work: Callable[[], Any], *, wait_s: float = 0) -> Request:
        """Run `work` here, or leave it to the thread that is at work.

        Args:
            work: called once, also if an interruption ends it.
            wait_s: how long to wait for the thread that is at work, in seconds.

        Returns:
            the request. If this was called inside another request, or the wait was too short, it
            is not done yet: it runs later.
        """
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
            self.afterwards()

    def has_requests(self) -> bool:
        """Whether a request waits."""
        return bool(self._requests)

    def is_at_work_here(self) -> bool:
        """Whether the caller is inside a request."""
        return runs_here(_WORK)

    def acquire(self, wait_s: float) -> None:
        """Keep requests from running until `release`; gives up after `wait_s` seconds."""
        self._is_kept = self._lock.acquire(timeout=wait_s)

    def release(self) -> None:
        """Undo `acquire`, if it succeeded."""
        if self._is_kept:
            self._is_kept = False
            self._lock.release()

    def forget_threads(self) -> bool:
        """In a forked child: free the lock that a thread of the parent holds.

        Returns:
            whether there was such a thread, so whether its request was cut off.
        """
        self.release()
        if self.is_at_work_here():
            return False
        was_at_work = not self._lock.acquire(blocking=False)
        self._lock = threading.RLock()
        return was_at_work

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
