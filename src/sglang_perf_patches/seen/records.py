"""One small record per process, from which ``status`` tells what is live where and has run.

A record names its process by PID and start time, and likewise the server that it belongs to: the
topmost of its ancestors that has a record, which is the launcher. It is readable by its user alone
and goes with the process; what a killed process left is removed by the next reader. A thread
writes it: code on a hot path only sets a flag in memory.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..model.state import Report

logger = logging.getLogger("sglang_perf_patches")

_TICK_S = 1.0
_HAS_PROC = os.path.isdir("/proc/self")
_OF_PROCESS: dict[str, Callable[[Any], Any]] = {
    "pid": int,
    "server": str,
    "started": float,
    "role": str,
    "sglang": str,
    "selection": str,
}
_OF_STATE: dict[str, Callable[[Any], Any]] = {"id": str, "state": str, "reason": str, "ran": bool}


class RecordError(RuntimeError):
    """The runtime folder can't be used."""


def keep(report: Callable[[], Report | None]) -> None:
    """Write this process's record now and whenever it changes, until `drop`."""
    drop()
    _keepers.append(_Keeper(report))


def changed() -> None:
    """Tell the keeper that something changed."""
    for keeper in _keepers:
        keeper.wake.set()


def drop() -> None:
    """Remove this process's record and stop keeping it."""
    while _keepers:
        _keepers.pop().stop()


def read_all() -> list[dict[str, Any]]:
    """The records of this user's running processes, by server and PID; stale ones are removed.

    Raises:
        RecordError: the runtime folder is there but not this user's alone.
    """
    folder = runtime_folder()
    if not os.path.lexists(folder):
        return []
    _require_private(folder)
    found = []
    for path in sorted(folder.iterdir()):
        pid, _, token = path.stem.partition("-")
        if path.suffix not in {".json", ".part"}:
            continue
        if not pid.isdigit() or _start_token(int(pid)) != token:
            with contextlib.suppress(OSError):
                path.unlink()
        elif path.suffix == ".json" and (data := _read(path, int(pid))):
            found.append({**data, "role": _title(int(pid)) or data["role"]})
    return sorted(found, key=lambda data: (data["server"], data["pid"]))


def runtime_folder() -> Path:
    """``$XDG_RUNTIME_DIR/sglang-perf-patches``, else this user's folder in the temporary folder.

    Raises:
        RecordError: this machine has no temporary folder either.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isdir(base):
        return Path(base) / "sglang-perf-patches"
    try:
        return Path(tempfile.gettempdir()) / f"sglang-perf-patches-{os.getuid()}"
    except OSError as error:
        raise RecordError(f"no folder for records: {error.strerror}") from error


class _Keeper:
    """Writes the record of one process, and logs once what has gone live."""

    def __init__(self, report: Callable[[], Report | None]) -> None:
        self.report = report
        self.over = False
        self.announced: tuple[str, ...] = ()
        self.seen: tuple[str, ...] = ()
        self.begin()

    def begin(self) -> None:
        """Start in this process: at first, and again in a forked child."""
        self.pid = os.getpid()
        self.started = time.time()
        self.wake = threading.Event()
        self.writing = threading.RLock()
        self.path: Path | None = None
        self.written = ""
        try:
            folder = runtime_folder()
            self.path = folder / f"{_name(self.pid)}.json"
            self.server = _topmost(folder, self.pid)
            self.write()
        except (OSError, RecordError) as error:
            logger.debug("no record for `sglang-perf-patches status`: %s", error)
        name = "sglang-perf-patches-record"
        threading.Thread(target=self.run, name=name, daemon=True).start()

    def run(self) -> None:
        while not self.over:
            self.wake.wait(_TICK_S)
            self.wake.clear()
            if self.over:
                return
            with contextlib.suppress(OSError, RecordError):
                self.write()
            self.announce()
            time.sleep(_TICK_S / 4)  # changes come in bursts

    def write(self) -> None:
        """Bring the record up to date, and back where a cleaner of temporary files took it.

        Raises:
            OSError: it can't be written. There is none then, rather than one that is out of date.
            RecordError: the folder is not this user's alone.
        """
        report = self.report()
        if self.path is None or report is None:
            return
        text = json.dumps(
            {
                "pid": self.pid,
                "server": self.server,
                "started": round(self.started, 3),
                "role": _role(),
                "sglang": report.sglang,
                "selection": report.selection,
                "patches": [asdict(state) for state in report.patches],
            }
        )
        with self.writing:
            if self.over or (text == self.written and self.path.exists()):
                return
            part = self.path.with_suffix(".part")
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                _require_private(self.path.parent)
                descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write(text)
                part.replace(self.path)
            except OSError:
                for left in (part, self.path):
                    with contextlib.suppress(OSError):
                        left.unlink()
                raise
            self.written = text

    def announce(self) -> None:
        """Log what is live, once it has been the same for two looks."""
        report = self.report()
        live = tuple(s.id for s in report.patches if s.state == "live") if report else ()
        if live and live == self.seen and live != self.announced and report:
            self.announced = live
            logger.info(
                "sglang-perf-patches: live on sglang %s: %s", report.sglang, ", ".join(live)
            )
        elif live != self.seen:
            self.seen = live
            self.wake.set()

    def stop(self) -> None:
        self.over = True
        self.wake.set()
        if self.path is not None and self.pid == os.getpid():
            with self.writing, contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)


_keepers: list[_Keeper] = []  # at most one; a container, so that nothing rebinds it


def _after_fork() -> None:
    for keeper in _keepers:
        keeper.begin()


atexit.register(drop)
os.register_at_fork(after_in_child=_after_fork)


def _require_private(folder: Path) -> None:
    """Refuse a folder that somebody else owns, can write or could have put there."""
    try:
        about = folder.lstat()
    except OSError as error:
        raise RecordError(f"{folder} can't be read: {error.strerror}") from error
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise RecordError(f"{folder} is not a folder of this user alone (mode 0700)")


def _read(path: Path, pid: int) -> dict[str, Any] | None:
    """The record of a process, written by this user; None for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, encoding="utf-8") as file:
            if os.fstat(descriptor).st_uid != os.getuid():
                return None
            data = json.load(file)
        record = {key: kind(data[key]) for key, kind in _OF_PROCESS.items()}
        record["server"] = int(record["server"].partition("-")[0])
        record["patches"] = [
            {key: kind(state[key]) for key, kind in _OF_STATE.items()} for state in data["patches"]
        ]
    except (OSError, ValueError, LookupError, TypeError):
        return None  # being replaced, or not ours to understand
    return record if record["pid"] == pid else None


def _topmost(folder: Path, pid: int) -> str:
    """The name of the topmost process that has a record, among this one and its ancestors."""
    found = _name(pid)
    parent = _parent(pid)
    while parent > 0:
        name = _name(parent)
        if (folder / f"{name}.json").exists():
            found = name
        parent = _parent(parent)
    return found


def _name(pid: int) -> str:
    """What the record of a process is called: its PID and what `_start_token` gives."""
    return f"{pid}-{_start_token(pid)}"


def _start_token(pid: int) -> str | None:
    """What tells a process from a later one with the same PID; None where there is none."""
    if _HAS_PROC:
        fields = _stat(pid)
        return None if not fields or fields[0] == "Z" else fields[19]
    return _ps(pid, "lstart").replace(" ", "_").replace(":", "") or None


def _parent(pid: int) -> int:
    """The PID of a process's parent, 0 where it has none or there is no such process."""
    if _HAS_PROC:
        fields = _stat(pid)
        return int(fields[1]) if fields else 0
    return int(_ps(pid, "ppid") or 0)


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the state on; none where there is no such process."""
    try:
        about = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # The name may hold anything, parentheses too: the fields follow the last one.
    return about.rpartition(")")[2].split()


def _title(pid: int) -> str:
    """The role that a sglang process shows in its title, "" where it shows none."""
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except (OSError, UnicodeDecodeError):
        title = "" if _HAS_PROC else _ps(pid, "command")
    return title.removeprefix("sglang::").split(" ")[0] if title.startswith("sglang::") else ""


def _ps(pid: int, field: str) -> str:
    try:
        done = subprocess.run(
            ["ps", "-o", f"{field}=", "-p", str(pid)], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _role() -> str:
    """What this process is, as far as its start tells: sglang's own titles say more later."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    name = spec.name if spec else os.path.basename(getattr(main, "__file__", "") or "python")
    if "multiprocessing" in sys.modules:
        process = sys.modules["multiprocessing"].current_process()
        if process.name != "MainProcess":
            return str(process.name)
    return "launcher" if name.endswith(("launch_server", "serve")) else str(name)
