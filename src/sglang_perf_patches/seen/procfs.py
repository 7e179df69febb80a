"""What the system knows about processes: ``/proc`` where there is one, else ``ps``."""

from __future__ import annotations

import os
from binascii import crc32
from functools import lru_cache
from pathlib import Path

_HAS_PROC = os.path.isdir("/proc/self")


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
        fields = _stat(pid)
        return None if not fields or fields[0] == "Z" else fields[19]
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
        fields = _stat(pid)
        return int(fields[1]) if fields else 0
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


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the state on; none if there is no such process."""
    try:
        about = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # The name may contain any character, even parentheses; the fields follow the last one.
    return about.rpartition(")")[2].split()


def _ps(pid: int, field: str) -> str:
    import subprocess  # only without /proc; other servers need not load it

    try:
        done = subprocess.run(
            ["ps", "-o", f"{field}=", "-p", str(pid)], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
