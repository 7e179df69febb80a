"""Runs a command in a session of its own, and ends it with everything that it started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..supervised.command import Supervised
from . import BenchError, UsageError
from .interrupts import held_back, is_waiting

_ASK_S = 20.0


@contextmanager
def started(command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> Iterator[Tree]:
    """Run a command during the block, with its output in `log`; then end all its processes.

    Raises:
        UsageError: there is no such command, or it can't be run.
        BenchError: one of its processes can't be killed.
    """
    tree = None
    try:
        with held_back():
            tree = Tree(command, environment=environment, log=log)
        yield tree
    finally:
        if tree is not None:
            tree.end()


def end_all() -> None:
    """End the commands that `started` could not end because a signal came at that moment."""
    while _trees:
        _trees[-1].end()


class Tree:
    """A running command and its descendants, which end at the latest with this process.

    Its members are the command's process, its session and process group, and their descendants; on
    Linux also orphans that moved to a session of their own.

    Args:
        command: its words.
        environment: its variables.
        log: receives its output.

    Raises:
        UsageError: there is no such command, or it can't be run.
    """

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], log: Path
    ) -> None:
        with log.open("ab") as output:
            try:
                self._command = Supervised(
                    command, environment=environment, stdout=output, stderr=output, polite_s=_ASK_S
                )
            except OSError as error:
                raise UsageError(f"{command[0]}: {error.strerror}") from error
        _trees.append(self)

    @property
    def pid(self) -> int:
        """The PID of the command, and of its process group."""
        return self._command.pid

    @property
    def code(self) -> int | None:
        """The command's exit code, None while it runs."""
        return self._command.code

    def pids(self) -> set[int]:
        """The PIDs of the living members."""
        return {member.pid for member in self._command.processes()}

    def resident_bytes(self) -> int:
        """The sum of the members' resident memory; shared memory counts once per member."""
        return sum(member.resident for member in self._command.processes())

    def end(self) -> None:
        """End all members: SIGTERM first, then SIGKILL, at once if a signal is waiting.

        Raises:
            BenchError: one of them can't be killed.
        """
        with held_back():
            left = self._command.end(is_urgent=is_waiting)
            if self in _trees:
                _trees.remove(self)
            if left:
                pids = ", ".join(map(str, left))
                raise BenchError(f"process {pids} of the server can't be killed")


_trees: list[Tree] = []  # the trees that have not ended
