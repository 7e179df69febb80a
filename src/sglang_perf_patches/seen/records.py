"""Record files: one small file per process, which ``status`` reads to show what is live where.

A record is called after its process: PID namespace, PID and start time. Its ``server`` names the
topmost of its ancestors that has a record, which is the launcher. It is readable by its user
alone. What a killed process left is removed by the next reader that can be sure of it: one in the
same PID namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..model.errors import OperatorError
from . import procfs

_FOLDER = "sglang-perf-patches"
_RUN, _TEMPORARY = "/run/user", "/tmp"  # noqa: S108
_OF_PROCESS: dict[str, Callable[[Any], Any]] = {
    "pid": int,
    "server": str,
    "started": float,
    "role": str,
    "sglang": str,
    "selection": str,
    "image": str,
}
_OF_STATE: dict[str, Callable[[Any], Any]] = {"id": str, "state": str, "reason": str, "ran": bool}


class RecordError(OperatorError, RuntimeError):
    """The runtime folder can't be used."""


def name_of(pid: int) -> str:
    """What the record of a process is called."""
    return f"{procfs.namespace()}-{pid}-{procfs.start_token(pid)}"


def folder_to_write() -> Path:
    """``$XDG_RUNTIME_DIR/sglang-perf-patches``, else this user's folder in the temporary folder.

    Raises:
        RecordError: this machine has no temporary folder either.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isdir(base):
        return Path(base) / _FOLDER
    return _in_temporary(_temporary_folder())


def folders_to_read() -> Iterator[Path]:
    """Where a process of this user may have its record, whatever its environment: ours first.

    A service or a container has no ``XDG_RUNTIME_DIR`` where the operator's shell has one, or the
    other way round, and a batch job has a temporary folder of its own.

    Raises:
        RecordError: there is none at all.
    """
    found = [folder_to_write(), Path(_RUN) / str(os.getuid()) / _FOLDER, _in_temporary(_TEMPORARY)]
    with contextlib.suppress(RecordError):  # everything but the runtime folder may be read-only
        found.append(_in_temporary(_temporary_folder()))
    yield from dict.fromkeys(found)


def read_all() -> list[dict[str, Any]]:
    """The records of this user's running processes, by server and PID; stale ones are removed.

    Raises:
        RecordError: the folder in which this environment's processes have their records is there
            but not this user's alone. Another such folder is passed over.
    """
    found: dict[str, dict[str, Any]] = {}
    for number, folder in enumerate(folders_to_read()):
        if not os.path.lexists(folder):
            continue
        try:
            require_private(folder)
        except RecordError:
            if number == 0:
                raise
            continue
        for path, pid in _of_living(folder):
            if path.name not in found and (data := _read(path, pid)):
                found[path.name] = data
    return sorted(found.values(), key=lambda data: (data["server"], data["pid"]))


def of_server(folder: Path, server: str) -> list[dict[str, Any]]:
    """The records in a folder of the processes of one server, by PID.

    Args:
        folder: where they are.
        server: the name of the server's topmost process.
    """
    try:
        require_private(folder)
        found = [_read(path, pid, server) for path, pid in _of_living(folder)]
    except RecordError:
        return []
    return sorted((data for data in found if data), key=lambda data: data["pid"])


def sweep(folder: Path) -> None:
    """Remove what processes that have ended left in a folder."""
    with contextlib.suppress(OSError, RecordError):
        for _ in _of_living(folder):
            pass


def write(path: Path, data: dict[str, Any]) -> None:
    """Write a record, whole or not at all.

    Raises:
        OSError: it can't be written. There is none then, rather than one that is out of date.
        RecordError: the folder is not this user's alone.
    """
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_private(path.parent)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(data))
        part.replace(path)
    except OSError:
        for left in (part, path):
            with contextlib.suppress(OSError):
                left.unlink()
        raise


def topmost(folder: Path, pid: int) -> str:
    """The name of the topmost process that has a record, among this one and its ancestors."""
    found = name_of(pid)
    parent = procfs.parent(pid)
    while parent > 0:
        name = name_of(parent)
        if (folder / f"{name}.json").exists():
            found = name
        parent = procfs.parent(parent)
    return found


def require_private(folder: Path) -> None:
    """Refuse a folder that another user owns, can write or could have put there.

    Raises:
        RecordError: it is such a folder, or can't be read.
    """
    try:
        about = folder.lstat()
    except OSError as error:
        raise RecordError(f"{folder} can't be read: {error.strerror}") from error
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise RecordError(f"{folder} is not a private folder of this user (mode 0700)")


def _in_temporary(folder: str) -> Path:
    return Path(folder) / f"{_FOLDER}-{os.getuid()}"


def _temporary_folder() -> str:
    import tempfile  # imports much that a process with a runtime folder does not need

    try:
        return tempfile.gettempdir()
    except OSError as error:
        raise RecordError(f"no folder for records: {error.strerror}") from error


def _of_living(folder: Path) -> Iterator[tuple[Path, int]]:
    """The records of processes of this namespace that live, with their PIDs; others are removed."""
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise RecordError(f"{folder} can't be read: {error.strerror}") from error
    for path in paths:
        space, _, rest = path.stem.partition("-")
        pid, _, token = rest.partition("-")
        if path.suffix not in {".json", ".part"} or not pid.isdigit():
            continue
        if space != procfs.namespace():
            continue  # from here it is unknown whether that process lives
        if procfs.start_token(int(pid)) != token:
            with contextlib.suppress(OSError):
                path.unlink()
        elif path.suffix == ".json":
            yield path, int(pid)


def _read(path: Path, pid: int, server: str | None = None) -> dict[str, Any] | None:
    """The record of a process (of `server` only), written by this user; None for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, encoding="utf-8") as file:
            if os.fstat(descriptor).st_uid != os.getuid():
                return None
            data = json.load(file)
        record = {key: convert(data[key]) for key, convert in _OF_PROCESS.items()}
        if server not in {None, record["server"]}:
            return None
        record["server"] = int(record["server"].split("-")[1])
        record["patches"] = [
            {key: convert(state[key]) for key, convert in _OF_STATE.items()}
            for state in data["patches"]
        ]
    except (OSError, ValueError, LookupError, TypeError):
        return None  # it is being replaced, or has an unknown format
    if record["pid"] != pid:
        return None
    before, now = record.pop("image"), procfs.image(pid)
    if before and now and before != now:  # the process runs another program after exec
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    record["role"] = procfs.title(pid) or record["role"]
    return record
