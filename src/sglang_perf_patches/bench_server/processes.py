"""A command with all that it starts: in a session of its own, watched, and ended as a whole."""

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
    """Run a command with its output in `log`; however the block ends, all of it ends.

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
    """End what `started` could not, because a signal came just as a block ended."""
    while _trees:
        _trees[-1].end()


class Tree:
    """A started command and all that came of it.

    Its members are the command's process, its session and process group, their descendants and,
    on Linux, the orphans among them that went to a session of their own. They end with this
    process, whatever ends it.
    """

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], log: Path
    ) -> None:
        """Start it with its output in `log` and nothing to read.

        Raises:
            UsageError: there is no such command, or it can't be run.
        """
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
        """The PIDs of the members that have not ended."""
        return {member.pid for member in self._command.processes()}

    def resident_bytes(self) -> int:
        """The members' resident memory; what they share counts once for each."""
        return sum(member.resident for member in self._command.processes())

    def end(self) -> None:
        """End all members: terminate first, then kill. A signal in between ends the waiting.

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
