"""Runs commands, and ends them with everything that they started, also after a signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ..supervised import Supervised
from . import BenchError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class _State:
    first: int | None = None  # the first signal


@contextmanager
def interruptible() -> Iterator[None]:
    """Make the first of these signals raise SystemExit, and end all commands after the block.

    Later signals make the commands end at once, and never change this process's exit code, which is
    128 + N after signal N.
    """
    _State.first = None
    before = {number: signal.signal(number, _arrived) for number in _SIGNALS}
    try:
        yield
    finally:
        while _running:  # a signal came while `started` ended it
            _running[-1].hurry()
            _end(_running[-1])
        for number, handler in before.items():
            # After the first signal this process ends, whatever else comes. Python's exit restores
            # the default of a signal that it handles, but not of one that is ignored.
            signal.signal(number, handler if _State.first is None else signal.SIG_IGN)


@contextmanager
def started(
    command: Sequence[str], *, environment: Mapping[str, str], log: Path
) -> Iterator[Supervised]:
    """Run a command during the block, with its output in `log`; then end all its processes.

    Raises:
        BenchError: one of its processes can't be killed.
    """
    with log.open("ab") as output:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until the command is noted
        try:
            running = Supervised(command, environment=environment, stdout=output, stderr=output)
            _running.append(running)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        yield running
    finally:
        _end(running)


def _end(running: Supervised) -> None:
    left = running.end()
    if running in _running:
        _running.remove(running)
    if left:
        pids = ", ".join(map(str, left))
        raise BenchError(f"process {pids} of the server can't be killed")


def _arrived(number: int, _frame: FrameType | None) -> None:
    if _State.first is not None:
        for running in _running:
            running.hurry()
        return
    _State.first = number
    raise SystemExit(128 + number)


_running: list[Supervised] = []  # the commands that have not ended
