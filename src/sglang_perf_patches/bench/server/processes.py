"""A command with all that it starts: in a session of its own, watched, and ended as a whole."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import BenchError, UsageError
from .interrupts import held_back, is_waiting

_ASK_S = 20.0
_ASK_REST_S = 3.0
_KILL_S = 30.0
_LOOK_S = 0.1
_PR_SET_CHILD_SUBREAPER = 36
_HAS_PROC = os.path.isdir("/proc/self")


@dataclass(frozen=True)
class _Process:
    """A line of the process table; `born` distinguishes it from a later process with its PID."""

    pid: int
    parent: int
    group: int
    session: int
    born: str
    resident: int
    has_ended: bool


@contextmanager
def started(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    adopts: bool = True,
) -> Iterator[Tree]:
    """Run a command with its output in `log`; however the block ends, all of it ends.

    Raises:
        UsageError: there is no such command, or it can't be run.
        BenchError: one of its processes can't be killed.
    """
    tree = None
    try:
        with held_back():
            tree = Tree(command, environment=environment, log=log, adopts=adopts)
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
    on Linux, the orphans among them that went to a session of their own: this process adopts them
    unless another tree was started with ``adopts=False``.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        adopts: bool = True,
    ) -> None:
        """Start it with its output in `log` and nothing to read.

        Raises:
            UsageError: there is no such command, or it can't be run.
        """
        _adopt_orphans()
        self._adopts = adopts
        self._others = {(found.pid, found.born) for found in _table()}
        with log.open("ab") as output:
            try:
                self._process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                    start_new_session=True,
                )
            except OSError as error:
                raise UsageError(f"{command[0]}: {error.strerror}") from error
        _trees.append(self)
        self._known: set[tuple[int, str]] = set()

    @property
    def pid(self) -> int:
        """The PID of the command, and of its process group."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The command's exit code, None while it runs."""
        return self._process.poll()

    def pids(self) -> set[int]:
        """The PIDs of the members that have not ended."""
        return {found.pid for found in self._members()}

    def resident_bytes(self) -> int:
        """The members' resident memory; what they share counts once for each."""
        return sum(found.resident for found in self._members())

    def end(self) -> None:
        """End all members: terminate first, then kill. A signal in between ends the waiting.

        Raises:
            BenchError: one of them can't be killed.
        """
        with held_back():
            if self.code is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.terminate()
                _wait(lambda: self.code is None, _ASK_S)
            if rest := self._members():
                _send(rest, signal.SIGTERM)
                _wait(lambda: bool(self._members()), _ASK_REST_S)
            deadline = time.monotonic() + _KILL_S
            while left := self._members():
                _send(left, signal.SIGKILL)
                if time.monotonic() > deadline:
                    pids = ", ".join(str(found.pid) for found in left)
                    raise BenchError(f"process {pids} of the server can't be killed")
                time.sleep(_LOOK_S)
            self._process.wait()
            if self in _trees:
                _trees.remove(self)

    def _members(self) -> list[_Process]:
        self._process.poll()  # reaps it, so that no zombie remains
        table = _table()
        mine = {
            found.pid
            for found in table
            if self.pid in (found.pid, found.group, found.session)
            or (found.pid, found.born) in self._known
            or (self._adopts and self._is_adopted(found))
        }
        parents = {found.pid: found.parent for found in table}
        for pid in parents:
            above = pid
            while above in parents and above not in mine:
                above = parents[above]
            if above in mine:
                mine.add(pid)
        members = [found for found in table if found.pid in mine and found.pid != os.getpid()]
        self._known |= {(found.pid, found.born) for found in members}
        for found in members:
            if found.has_ended and found.parent == os.getpid() and found.pid != self.pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(found.pid, os.WNOHANG)
        return [found for found in members if not found.has_ended]

    def _is_adopted(self, found: _Process) -> bool:
        """Whether it became this process's child by its parent's end."""
        return (
            found.parent == os.getpid()
            and found.session != os.getsid(0)
            and found.pid not in {tree.pid for tree in _trees}
            and (found.pid, found.born) not in self._others
        )


_trees: list[Tree] = []  # the trees that have not ended


def _wait(goes_on: Callable[[], bool], seconds: float) -> None:
    """While it goes on, so long at most; a waiting signal ends it at once."""
    deadline = time.monotonic() + seconds
    while goes_on() and time.monotonic() < deadline and not is_waiting():
        time.sleep(_LOOK_S)


def _send(processes: Iterable[_Process], number: signal.Signals) -> None:
    for found in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(found.pid, number)


def _adopt_orphans() -> None:
    """On Linux, become the parent of descendants whose own parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _table() -> list[_Process]:
    return _table_of_proc() if _HAS_PROC else _table_of_ps()


def _table_of_proc() -> list[_Process]:
    page = os.sysconf("SC_PAGE_SIZE")
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            text = Path("/proc", name, "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # the process has ended
        # The name may contain any character, even parentheses; the fields follow the last one.
        fields = text.rpartition(")")[2].split()
        state, parent, group, session = fields[:4]
        found.append(
            _Process(
                pid=int(name),
                parent=int(parent),
                group=int(group),
                session=int(session),
                born=fields[19],
                resident=int(fields[21]) * page,
                has_ended=state in "ZX",
            )
        )
    return found


def _table_of_ps() -> list[_Process]:
    """As `_table_of_proc`, with POSIX's ``ps`` alone, which does not show the session."""
    asked = ["ps", "-Ao", "pid=,ppid=,pgid=,rss=,state=,lstart="]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    found = []
    for line in done.stdout.splitlines():
        pid, parent, group, resident, state, *born = line.split()
        found.append(
            _Process(
                pid=int(pid),
                parent=int(parent),
                group=int(group),
                session=int(group),
                born=" ".join(born),
                resident=int(resident) * 1024,
                has_ended=state.startswith("Z"),
            )
        )
    return found
