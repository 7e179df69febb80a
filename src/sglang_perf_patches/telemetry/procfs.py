"""Processes as the system reports them: from ``/proc`` if there is one, else from ``ps``."""

from __future__ import annotations

import os
from binascii import crc32
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

HAS_PROC = os.path.isdir("/proc/self")
STATE, PARENT, BORN = 0, 1, 19
"""Positions in what `stat` returns."""
ENDED = "ZX"
"""The states of a zombie and of a dead process."""


@lru_cache(maxsize=1)
def namespace() -> str:
    """An identifier of this process's PID namespace; "0" if the system does not tell.

    PIDs are unique only within it, and containers or hosts may share the folder of the records.
    """
    if not HAS_PROC:
        return "0"
    try:
        inode = str(os.stat("/proc/self/ns/pid").st_ino)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return "0"
    return f"{crc32((inode + boot).encode()):08x}"


def start_token(pid: int) -> str | None:
    """The process's start time as text, which tells it from a later one; None if it is gone."""
    if HAS_PROC:
        fields = stat(pid)
        return None if fields is None or fields[STATE] in ENDED else fields[BORN]
    return _ps(pid, "lstart").replace(" ", "_").replace(":", "") or None


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


def parent(pid: int) -> int:
    """The PID of a process's parent; 0 if it has none or does not exist."""
    if HAS_PROC:
        fields = stat(pid)
        return int(fields[PARENT]) if fields else 0
    return int(_ps(pid, "ppid") or 0)


def title(pid: int) -> str:
    """The role in a sglang process's title, such as ``scheduler_TP0``; "" if it has none."""
    words = " ".join(command(pid)) or ("" if HAS_PROC else _ps(pid, "command"))
    return words.removeprefix("sglang::").split(" ")[0] if words.startswith("sglang::") else ""


def command(pid: int) -> list[str]:
    """The words of a process's command; empty without ``/proc``, as ``ps`` joins them."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return []
    return text.rstrip("\0").split("\0") if text.strip("\0") else []


def option(words: Sequence[str], name: str) -> str | None:
    """The value of an option in a command, ``NAME VALUE`` or ``NAME=VALUE``; the last one wins."""
    value = None
    for at, word in enumerate(words):
        if word == name and at + 1 < len(words):
            value = words[at + 1]
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


def stat(pid: int) -> list[str] | None:
    """The fields of ``/proc/PID/stat`` from the state on; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            about = file.read()
    except OSError:
        return None
    # The name may contain any character, even parentheses; the fields follow the last one.
    return about.rpartition(")")[2].split()


def _ps(pid: int, field: str) -> str:
    import subprocess  # only without /proc; other servers need not load it

    try:
        answer = subprocess.run(
            ["ps", "-o", f"{field}=", "-p", str(pid)], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()
