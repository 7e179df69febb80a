"""Processes as the system reports them: from ``/proc`` if there is one, else from ``ps``."""

from __future__ import annotations

import os
from binascii import crc32
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

HAS_PROC = os.path.isdir("/proc/self")
_FIELDS = "pid=,ppid=,pgid=,rss=,state=,lstart=,ucomm="


class Process(NamedTuple):
    """A row of the process table."""

    pid: int
    parent: int  # its PID
    group: int
    born: str  # when it started, in the system's format; a later process with this PID differs
    resident: int  # memory, in bytes
    has_ended: bool  # it is a zombie or dead


def table() -> list[Process]:
    """All processes that this user can see."""
    if not HAS_PROC:
        return from_ps("-A")
    found = (_from_proc(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return [process for process in found if process is not None]


def of(pid: int) -> Process | None:
    """A process's row; None if there is no such process."""
    return _from_proc(pid) if HAS_PROC else next(iter(from_ps("-p", str(pid))), None)


@lru_cache(maxsize=1)
def namespace() -> str:
    """An identifier of this process's PID namespace; "0" if the system does not tell.

    PIDs are unique only within it, and containers or hosts may share the folder of the records.
    """
    try:
        inode = str(os.stat("/proc/self/ns/pid").st_ino)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        return "0"
    return f"{crc32((inode + boot).encode()):08x}"


def start_token(pid: int) -> str | None:
    """When a process started, as text: a later one with its PID differs; None if it has ended."""
    process = of(pid)
    return None if process is None or process.has_ended else process.born


def image(pid: int) -> str:
    """An identifier of the program that a process runs, which changes with an exec.

    It covers the executable's path and the addresses that the kernel chose at the exec, so another
    start of the same Python differs too. "" if the system does not tell.
    """
    try:
        executable = os.readlink(f"/proc/{pid}/exe")
        addresses = Path(f"/proc/{pid}/auxv").read_bytes()
    except OSError:
        return ""
    return f"{crc32(executable.encode(errors='replace') + addresses):08x}"


def title(pid: int) -> str:
    """The role in a sglang process's title, such as ``scheduler_TP0``; "" if it has none."""
    words = " ".join(command(pid) if HAS_PROC else _ps("-o", "command=", "-p", str(pid)))
    return words.removeprefix("sglang::").split(" ")[0] if words.startswith("sglang::") else ""


def command(pid: int) -> list[str]:
    """The words of a process's command; empty without ``/proc``, as ``ps`` joins them."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return []
    return text.rstrip("\0").split("\0") if text.strip("\0") else []


def from_ps(*which: str) -> list[Process]:
    """The rows of these processes from ``ps``, without that of ``ps`` itself."""
    processes = []
    for line in _ps("-o", _FIELDS, *which):
        pid, parent, group, resident, state, *rest = line.split()
        born, name = rest[:5], rest[5:]
        if int(parent) == os.getpid() and name == ["ps"]:
            continue
        processes.append(
            Process(
                pid=int(pid),
                parent=int(parent),
                group=int(group),
                born="_".join(born).replace(":", ""),
                resident=int(resident) * 1024,
                has_ended=state.startswith("Z"),
            )
        )
    return processes


def _from_proc(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            about = file.read()
    except OSError:
        return None
    # The name may contain any character, even parentheses; the fields follow the last one.
    fields = about.rpartition(")")[2].split()
    return Process(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        born=fields[19],
        resident=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        has_ended=fields[0] in "ZX",
    )


def _ps(*words: str) -> list[str]:
    import subprocess  # only without /proc; other servers need not load it

    try:
        answer = subprocess.run(["ps", *words], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.splitlines()
