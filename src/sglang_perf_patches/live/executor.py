"""One thread at a time does what is requested, and no request begins inside of another.

A signal handler, a finaliser or an import may call in the middle of our own code, on the same
thread, so that no lock keeps it out. What it requests is done by the frame that it interrupted,
before that returns. A request of another thread is done by whoever is at work.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from . import stacks

Work = Callable[[], None]

_POLL_S = 0.001


class Executor:
    """Does requests, one after the other."""

    def __init__(self) -> None:
        """Have nothing to do."""
        self._requests: deque[_Request] = deque()
        self._lock = threading.Lock()
        self._is_kept = False

    def do(self, work: Work, *, wait_s: float = 0) -> bool:
        """Have `work` done, here or by the thread that is at work.

        Args:
            work: may be repeated; what it raises reaches the thread that does it.
            wait_s: how long to wait for the thread that is at work, in seconds.

        Returns:
            whether it has been done. It has not where this is called inside of a request, or where
            the time was over: then it will be.
        """
        request = _Request(work)
        self._requests.append(request)
        self.go_on()
        end = time.monotonic() + wait_s
        while not request.is_done and not self.is_at_work_here():
            if time.monotonic() > end:
                break
            time.sleep(_POLL_S)
            self.go_on()
        return request.is_done

    def go_on(self) -> None:
        """Do what is requested, unless somebody is at work."""
        while self._requests:  # again where a request came as the last one ended
            if not self._work():
                return

    def __len__(self) -> int:
        """How much is requested, with what is being done."""
        return len(self._requests)

    def is_at_work_here(self) -> bool:
        """Whether the calling code is inside of a request."""
        return stacks.runs_here(_WORK)

    def acquire(self, wait_s: float) -> bool:
        """Keep others from beginning, until `release`; False if somebody was at work so long."""
        self._is_kept = self._lock.acquire(timeout=wait_s)
        return self._is_kept

    def release(self) -> None:
        """Let others begin; nothing where `acquire` was in vain."""
        if self._is_kept:
            self._is_kept = False
            self._lock.release()

    def is_free(self) -> bool:
        """Whether nobody is at work."""
        return not self._lock.locked()

    def forget_threads(self) -> None:
        """In a forked child: a thread that was at work is not there."""
        if not self.is_at_work_here():
            self._lock = threading.Lock()
            self._is_kept = False

    def _work(self) -> bool:
        lock = self._lock
        if not lock.acquire(blocking=False) and not self._is_left_over(lock):
            return False
        try:
            while self._requests:
                # One that is interrupted stays: the next call does it again.
                request = self._requests[0]
                request.work()
                request.is_done = True
                self._requests.popleft()
        finally:
            if lock.locked():
                lock.release()
        return True

    def _is_left_over(self, lock: threading.Lock) -> bool:
        """Whether nobody is at work though the lock is held: an interruption kept it held."""
        if self._is_kept or stacks.runs_here(_WORK, beyond=2) or stacks.runs_elsewhere(_WORK):
            return False
        return lock.locked() and self._lock is lock


class _Request:
    """Work, and whether it is done."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.is_done = False


_WORK = (Executor._work.__code__,)
