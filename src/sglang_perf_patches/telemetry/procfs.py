"""What the system knows about processes: ``/proc`` where there is one, else ``ps``."""

from __future__ import annotations

import os
from binascii import crc32
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_HAS_PROC = os.path.isdir("/proc/self")


class Process(NamedTuple):
    """A line of the process table; `born` distinguishes it from a later process with its PID."""

    pid: int
    parent: int
    group: int
    session: int
    born: str
    resident: int
    has_ended: bool


@lru_cache(maxsize=1)
def namespace() -> str:
    """A mark of this process's PID namespace; another container or host has another one.

    A PID means something in its namespace only, and two containers, or two hosts, may share the
    folder of the records.
    """
    if not _HAS_PROC:
        return "0"
    try:
        inode = str(os.stat("/proc/self/ns/pid").st_ino)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return "0"
    return f"{crc32((inode + boot).encode()):08x}"


def start_token(pid: int) -> str | None:
    """A mark that no later process with this PID has; None if there is no such process."""
    if _HAS_PROC:
        process = _of_proc(pid)
        return None if process is None or process.has_ended else process.born
    return _ps(pid, "lstart").replace(" ", "_").replace(":", "") or None


def image(pid: int) -> str:
    """A mark of the program that a process runs; after an exec it is another one.

    The path of the executable, and the addresses that the kernel drew for it: the same Python
    that starts anew has others. "" if the system does not say.
    """
    try:
        executable = os.readlink(f"/proc/{pid}/exe")
        addresses = Path(f"/proc/{pid}/auxv").read_bytes()
    except OSError:
        return ""
    return f"{crc32(executable.encode(errors='replace') + addresses):08x}"


def parent(pid: int) -> int:
    """The PID of a process's parent, 0 if it has none or there is no such process."""
    if _HAS_PROC:
        process = _of_proc(pid)
        return process.parent if process else 0
    return int(_ps(pid, "ppid") or 0)


def title(pid: int) -> str:
    """The role that a sglang process shows in its title, "" if it shows none."""
    words = " ".join(command(pid)) or ("" if _HAS_PROC else _ps(pid, "command"))
    return words.removeprefix("sglang::").split(" ")[0] if words.startswith("sglang::") else ""


def command(pid: int) -> list[str]:
    """The words of a process's command, none if the system does not give them apart."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return []
    return text.rstrip("\0").split("\0") if text.strip("\0") else []


def option(words: Sequence[str], name: str) -> str | None:
    """The value that a command gives an option, as ``NAME VALUE`` or ``NAME=VALUE``; the last."""
    value = None
    for at, word in enumerate(words):
        if word == name and at + 1 < len(words):
            value = words[at + 1]
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


def table() -> list[Process]:
    """All processes of this machine that can be seen; ``ps`` does not show their sessions."""
    return table_of_proc() if _HAS_PROC else table_of_ps()


def descendants(table: Iterable[Process], pids: Iterable[int]) -> list[Process]:
    """The processes with these PIDs, and what descends from them."""
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
    """The table as ``/proc`` gives it."""
    processes = (_of_proc(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return [process for process in processes if process is not None]


def table_of_ps() -> list[Process]:
    """The table as POSIX's ``ps`` gives it."""
    import subprocess

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
    """What ``/proc/PID/stat`` says; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            about = file.read()
    except OSError:
        return None
    # The name may contain any character, even parentheses; the fields follow the last one.
    fields = about.rpartition(")")[2].split()
    state, parent, group, session = fields[:4]
    return Process(
        pid=pid,
        parent=int(parent),
        group=int(group),
        session=int(session),
        born=fields[19],
        resident=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        has_ended=state in "ZX",
    )


def _ps(pid: int, field: str) -> str:
    import subprocess  # only without /proc; other servers need not load it

    try:
        answer = subprocess.run(
            ["ps", "-o", f"{field}=", "-p", str(pid)], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()
