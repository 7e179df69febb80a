"""Turns the signals that end a process into an exception, which can be deferred for a block."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Interrupted(BaseException):
    """A signal to end this process.

    Attributes:
        number: the signal's.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _State:
    held = 0
    waiting: int | None = None
    has_raised = False


@contextmanager
def turned_into_exceptions() -> Iterator[None]:
    """Make the first of these signals raise `Interrupted`, at once or after `held_back`.

    Later ones are only noted, for `is_waiting`, so that cleaning up is not interrupted.
    """
    _State.waiting, _State.has_raised = None, False
    before = {number: signal.signal(number, _arrived) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def held_back() -> Iterator[None]:
    """Defer signals to the end of the block."""
    _State.held += 1
    try:
        yield
    finally:
        _State.held -= 1
        if not _State.held and _State.waiting is not None:
            _raise(_State.waiting)


def is_waiting() -> bool:
    """Whether a deferred signal waits, so that the block should end soon."""
    return _State.waiting is not None


def _arrived(number: int, _frame: FrameType | None) -> None:
    if _State.held or _State.has_raised:
        _State.waiting = number
    else:
        _raise(number)


def _raise(number: int) -> None:
    _State.waiting = None
    if not _State.has_raised:
        _State.has_raised = True
        raise Interrupted(number)
