"""The table of all processes: from ``/proc`` if there is one, else from ``ps``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from typing import NamedTuple

from ..telemetry import procfs


class Process(NamedTuple):
    """A row of the process table.

    Attributes:
        pid: its PID.
        parent: the PID of its parent.
        group: its process group.
        session: its session; where ``ps`` is used, its process group.
        born: when it started, in the system's own format; a later process with this PID differs.
        resident: resident memory, in bytes.
        has_ended: whether it is a zombie or dead.
    """

    pid: int
    parent: int
    group: int
    session: int
    born: str
    resident: int
    has_ended: bool


def table() -> list[Process]:
    """All processes that this user can see."""
    return table_of_proc() if procfs.HAS_PROC else table_of_ps()


def descendants(table: Iterable[Process], pids: Iterable[int]) -> list[Process]:
    """The processes with these PIDs and all their descendants."""
    by_pid = {process.pid: process for process in table}
    mine = {pid for pid in pids if pid in by_pid}
    for pid in by_pid:
        line = []
        above = pid
        while above in by_pid and above not in mine and above not in line:
            line.append(above)
            above = by_pid[above].parent
        if above in mine:
            mine.update(line)
    return [process for process in by_pid.values() if process.pid in mine]


def table_of_proc() -> list[Process]:
    """`table`, from ``/proc``."""
    processes = (_of_proc(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return [process for process in processes if process is not None]


def table_of_ps() -> list[Process]:
    """`table`, from POSIX's ``ps``, which does not show sessions."""
    words = ["ps", "-Ao", "pid=,ppid=,pgid=,rss=,state=,lstart="]
    listing = subprocess.run(words, capture_output=True, text=True, check=False)
    processes = []
    for line in listing.stdout.splitlines():
        pid, parent, group, resident, state, *born = line.split()
        processes.append(
            Process(
                pid=int(pid),
                parent=int(parent),
                group=int(group),
                session=int(group),
                born=" ".join(born),
                resident=int(resident) * 1024,
                has_ended=state.startswith("Z"),
            )
        )
    return processes


def _of_proc(pid: int) -> Process | None:
    fields = procfs.stat(pid)
    if fields is None:
        return None
    return Process(
        pid=pid,
        parent=int(fields[procfs.PARENT]),
        group=int(fields[2]),
        session=int(fields[3]),
        born=fields[procfs.BORN],
        resident=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        has_ended=fields[procfs.STATE] in procfs.ENDED,
    )
