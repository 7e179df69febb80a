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


def exit_on_signals() -> None:
    """From now on the first signal N raises SystemExit with 128 + N.

    Later ones do nothing: they would change the exit code or interrupt the ending of commands.
    """

    def arrived(number: int, _frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for each in _SIGNALS:
        signal.signal(each, arrived)


@contextmanager
def started(
    command: Sequence[str], *, environment: Mapping[str, str], log: Path
) -> Iterator[Supervised]:
    """Run a command during the block, with its output in `log`; then end all its processes."""
    with log.open("ab") as output:
        running = Supervised(command, environment=environment, stdout=output, stderr=output)
    try:
        yield running
    finally:
        try:
            left = running.end()
        except SystemExit:  # a signal came meanwhile; `end` asked politely before, and now kills
            if not (left := running.end()):
                raise
        if left:
            raise BenchError(f"process {', '.join(map(str, left))} of the server can't be killed")
