"""One thread at a time does what is requested, and no request begins inside of another.

A signal handler, a finaliser or an import may call in the middle of our own code, on the same
thread, so that no lock keeps it out. One rule is for all of them: inside of a request, what is
requested waits in a queue, and the outer call does it before that returns, or the next tick. A
request of another thread is done by whoever is at work.
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
    """Work, and what came of it.

    Attributes:
        is_done: it has been done, or has failed.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        self.is_done = False
        self._work = work
        self._result: Any = None
        self._error: Exception | None = None

    def do(self) -> None:
        """Do it; what it raises is kept for `result`, unless it is an interruption."""
        try:
            self._result = self._work()
        except Exception as error:
            self._error = error
        self.is_done = True

    def result(self) -> Any:
        """What it returned; None if it has not been done.

        Raises:
            Exception: what it raised.
        """
        if self._error is not None:
            raise self._error
        return self._result


class Executor:
    """Does requests, one after the other.

    Attributes:
        afterwards: called outside of any request, when some have been done.
        interrupted: called instead, when an interruption has ended one.
    """

    def __init__(self) -> None:
        self.afterwards: Callable[[], None] = lambda: None
        self.interrupted: Callable[[], None] = lambda: None
        self._requests: deque[Request] = deque()
        self._lock = threading.RLock()
        self._is_kept = False

    def do(self, work: Callable[[], Any], *, wait_s: float = 0) -> Request:
        """Have `work` done, here or by the thread that is at work.

        Args:
            work: what an interruption ends is not done again.
            wait_s: how long to wait for the thread that is at work, in seconds.

        Returns:
            what came of it. It is not done where this is called inside of a request, or where the
            time was over: then it will be.
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
        """Do what is requested, unless somebody is at work."""
        while self._requests and not self.is_at_work_here():  # again where one came meanwhile
            if not self._lock.acquire(blocking=False):
                return
            try:
                self._work()
            except BaseException as error:
                if not isinstance(error, Exception):  # whoever requested answers for those
                    self.interrupted()
                raise
            self.afterwards()

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._requests)

    def is_at_work_here(self) -> bool:
        """Whether the calling code is inside of a request."""
        return runs_here(_WORK)

    def acquire(self, wait_s: float) -> None:
        """Keep others from beginning, until `release`, unless somebody is at work so long."""
        self._is_kept = self._lock.acquire(timeout=wait_s)

    def release(self) -> None:
        """Let others begin."""
        if self._is_kept:
            self._is_kept = False
            self._lock.release()

    def forget_threads(self) -> bool:
        """In a forked child: a thread that was at work is not there. Whether one was."""
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
            # Also what an interruption, between taking the lock and this, has kept held before.
            with contextlib.suppress(RuntimeError):
                while True:
                    self._lock.release()


_WORK = (Executor._work.__code__,)

executor = Executor()
"""The one of this process."""
