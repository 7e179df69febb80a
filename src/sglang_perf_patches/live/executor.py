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
from itertools import takewhile
from typing import Any

from .threads import runs_here, stacks

_POLL_S = 0.001
_FORK_S = 1.0
"""How long a fork waits for the thread at work, which may itself wait for the one forking."""
_FORK_WHILE_IMPORTING_S = 5.0
"""Longer, because a forked child can't import a module that another thread was importing."""
_IMPORTING = "<frozen importlib._bootstrap>"


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
        afterwards: called outside of any request, after some have run.
        interrupted: called instead, after an interruption has ended one.
        ending: held by the thread that ends the process; taken before the executor's own lock.
        cut_off: why this forked child can import none of our code any more; "" if it can.
        leave: called with `cut_off` in such a child.
    """

    def __init__(self) -> None:
        self.afterwards: Callable[[], None] = lambda: None
        self.interrupted: Callable[[], None] = lambda: None
        self.ending = threading.RLock()
        self.cut_off = ""
        self.leave: Callable[[str], None] = lambda reason: None
        self._requests: deque[Request] = deque()
        self._lock = threading.RLock()
        self._is_kept = False
        self._cuts_import = False

    def do(self, work: Callable[[], Any], *, wait_s: float = 0) -> Request:
        """Run `work` here, or leave it to the thread at work, which is awaited for `wait_s`.

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

    def before_fork(self) -> None:
        """Keep requests from running until the fork is over, if the one at work ends in time."""
        self.ending.acquire()
        if self.is_at_work_here():
            return
        self._is_kept = self._lock.acquire(timeout=_FORK_S)
        if not self._is_kept and _is_importing():
            self._is_kept = self._lock.acquire(timeout=_FORK_WHILE_IMPORTING_S)
        self._cuts_import = not self._is_kept and _is_importing()

    def after_fork(self) -> None:
        """Undo `before_fork`."""
        if self._is_kept:
            self._is_kept = False
            self._lock.release()
        with contextlib.suppress(RuntimeError):  # registered while the fork was under way
            self.ending.release()

    def after_fork_in_child(self) -> None:
        """The same, and free the lock that a thread of the parent holds."""
        self.after_fork()
        if self.is_at_work_here():
            return
        was_at_work = not self._lock.acquire(blocking=False)
        self._lock = threading.RLock()
        if was_at_work and self._cuts_import:
            self.cut_off = "this process was forked while its code was being imported"
            self.leave(self.cut_off)

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


def _is_importing() -> bool:
    """Whether the thread at work is inside an import that its request has begun."""
    for codes in stacks():
        above = [*takewhile(lambda code: code is not _WORK[0], codes)]
        if len(above) < len(codes) and any(code.co_filename == _IMPORTING for code in above):
            return True
    return False


executor = Executor()
"""The executor of this process."""
