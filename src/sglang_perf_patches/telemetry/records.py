"""Record files: one small file per process, which ``status`` reads to show what is live where.

A record is named after its process: PID namespace, PID and start time. Its ``server`` is the name
of the topmost ancestor that has a record, which is the launcher. Only its user can read it.

A reader removes the records of processes that have ended, if they are of its own PID namespace. Of
other namespaces it can't tell, so it removes what is older than a day. A living process writes its
record again within a second.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..model import private
from ..model.errors import OperatorError
from . import procfs

_FOLDER = "sglang-perf-patches"
_RUN, _TEMPORARY = "/run/user", "/tmp"  # noqa: S108
_OLD_S = 24 * 3600.0
_LATEST = 253_402_214_400.0  # the last day of the year 9999
_SWEPT = 200
"""How many files of a folder are checked at once by a process that only tidies up."""

_STRONGEST_FIRST = (
    *("failed", "conflict", "refused", "gated", "not needed"),
    *("live", "pending", "built-in", "absent", "off"),
)
_ALWAYS_COUNTED = ("live", "pending", "refused")
_COUNTED_IF_ANY = ("conflict", "failed", "gated")

_OnBad = Callable[[str], object]


class RecordError(OperatorError, RuntimeError):
    """The runtime folder can't be used."""


def name_of(pid: int) -> str:
    """The name of a process's record, without suffix."""
    return f"{procfs.namespace()}-{pid}-{procfs.start_token(pid)}"


def folder_to_write() -> Path:
    """``$XDG_RUNTIME_DIR/sglang-perf-patches``, else this user's folder in the temporary folder.

    The latter also if ``XDG_RUNTIME_DIR`` belongs to another user, as after ``sudo``.

    Raises:
        RecordError: this machine has no temporary folder either.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isdir(base) and os.stat(base).st_uid == os.getuid():
        return Path(base) / _FOLDER
    try:
        return Path(private.temporary())
    except OSError as error:
        raise RecordError(f"no folder for records: {error.strerror}") from error


def folders_to_read() -> Iterator[Path]:
    """Every folder in which a process of this user may have its record, this environment's first.

    A service or a container often has no ``XDG_RUNTIME_DIR`` where the operator's shell has one, or
    the other way round, and a batch job has its own temporary folder.
    """
    of_user = Path(_RUN) / str(os.getuid()) / _FOLDER
    folders = [folder_to_write(), of_user, Path(private.below(_TEMPORARY))]
    with contextlib.suppress(OSError):  # only the runtime folder may be writable
        folders.append(Path(private.temporary()))
    yield from dict.fromkeys(folders)


def read_all(on_bad: _OnBad = lambda line: None) -> list[dict[str, Any]]:
    """The records of this user's running processes, by server and PID; removes stale ones.

    `on_bad` is called with a line about each file that is named like a record and is none, and
    about this environment's own folder if it is not private to this user. Any such folder is
    skipped.

    Raises:
        RecordError: there is no folder for records at all.
    """
    by_name: dict[str, dict[str, Any]] = {}
    for number, folder in enumerate(folders_to_read()):
        if not os.path.lexists(folder):
            continue
        try:
            for path, pid in _of_living(folder, on_bad):
                if path.name not in by_name and (data := _read(path, pid, on_bad=on_bad)):
                    by_name[path.name] = data
        except RecordError as error:
            if number == 0:
                on_bad(f"{harmless(str(error))}: its records are not read")
    return sorted(by_name.values(), key=lambda data: (data["server"], data["pid"]))


def of_server(folder: Path, server: str) -> list[dict[str, Any]]:
    """The records of the server with this topmost record, by PID; empty if they can't be read."""
    try:
        records = [_read(path, pid, server) for path, pid in _of_living(folder)]
    except RecordError:
        return []
    return sorted(filter(None, records), key=lambda data: data["pid"])


def over_processes(processes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Patch → its state in a server: the strongest one in any of these records.

    So trouble in one process is trouble, else live in one is live. ``not needed`` is stronger than
    ``live`` and ``pending``: all processes have the same arguments, but some never publish them.
    """
    states: dict[str, str] = {}
    for process in processes:
        for patch in process["patches"]:
            states[patch["id"]] = min(states.get(patch["id"], "off"), patch["state"], key=_strength)
    return states


def counts(states: Mapping[str, str]) -> str:
    """``live 8, pending 4, refused 0``, and the counts of other trouble if there is any."""
    number = Counter(states.values())
    parts = [f"{state} {number[state]}" for state in _ALWAYS_COUNTED]
    parts += [f"{state} {number[state]}" for state in _COUNTED_IF_ANY if number[state]]
    return ", ".join(parts)


def in_state(states: Mapping[str, str], word: str) -> Sequence[str]:
    """The patches that are in a state, in declared order."""
    return [patch_id for patch_id, state in states.items() if state == word]


def sweep(folder: Path) -> None:
    """Remove stale records; in a large folder, of a random part, so that it never takes long."""
    with contextlib.suppress(RecordError):
        for _ in _of_living(folder, limit=_SWEPT):
            pass


def write(path: Path, data: dict[str, Any]) -> None:
    """Write a record, whole or not at all.

    Raises:
        OSError: it can't be written; then an outdated one is removed too.
        RecordError: the folder is not private to this user.
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
    """The record name of a process's topmost ancestor with a record; its own if there is none."""
    top = name_of(pid)
    while (process := procfs.of(pid)) is not None and process.parent > 0:
        pid = process.parent
        name = name_of(pid)
        if (folder / f"{name}.json").exists():
            top = name
    return top


def require_private(folder: Path) -> None:
    """Refuse, by a RecordError, what is no private folder of this user; see `private.require`."""
    try:
        private.require(folder, folder.lstat())
    except OSError as error:
        why = f"{folder} can't be read: {error.strerror}" if error.strerror else f"{error}"
        raise RecordError(why) from error


def _of_living(
    folder: Path, on_bad: _OnBad = lambda line: None, limit: int | None = None
) -> Iterator[tuple[Path, int]]:
    """The records of this namespace's living processes, with their PIDs; removes stale ones."""
    require_private(folder)
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise RecordError(f"{folder} can't be read: {error.strerror}") from error
    here = procfs.namespace()
    for name in names if limit is None else random.sample(names, min(limit, len(names))):
        path = folder / name
        space, _, rest = path.stem.partition("-")
        if path.suffix not in {".json", ".part"} or not space.isalnum():
            continue
        if space != here:  # whether that process lives can't be known here
            with contextlib.suppress(OSError):
                if path.lstat().st_mtime < time.time() - _OLD_S:
                    path.unlink()
            continue
        pid, _, token = rest.partition("-")
        if not (pid.isascii() and pid.isdecimal() and len(pid) < 12):
            on_bad(f"{harmless(name)} is not named as a record")
        elif procfs.start_token(int(pid)) != token:
            with contextlib.suppress(OSError):
                path.unlink()
        elif path.suffix == ".json":
            yield path, int(pid)


def _read(
    path: Path, pid: int, server: str | None = None, on_bad: _OnBad = lambda line: None
) -> dict[str, Any] | None:
    """A process's record if this user wrote it (and if it is of `server`, if given), else None."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, encoding="utf-8") as file:
            if os.fstat(descriptor).st_uid != os.getuid():
                raise PermissionError("it is another user's")
            data = json.load(file)
        record = {key: convert(data[key]) for key, convert in _OF_PROCESS.items()}
        if record["pid"] != pid:
            raise ValueError("it names another process")
        if server not in {None, record["server"]}:
            return None
        record["server"] = int(record["server"].split("-")[1])
        record["patches"] = [
            {key: convert(state[key]) for key, convert in _OF_STATE.items()}
            for state in data["patches"]
        ]
    except FileNotFoundError:
        return None  # its process has just ended
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        on_bad(f"{harmless(path.name)} is not a record: {harmless(f'{why}')[:200]}")
        return None
    before, now = record.pop("image"), procfs.image(pid)
    if before and now and before != now:  # the process runs another program after exec
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    record["role"] = harmless(procfs.title(pid)) or record["role"]
    return record


def _strength(state: str) -> int:
    return (*_STRONGEST_FIRST, state).index(state)


def harmless(text: str) -> str:
    r"""A text with control characters written out (``\x1b``), because they steer a terminal."""
    escaped = (one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return "".join(escaped)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} instead of text")
    return harmless(value)


def _time(value: Any) -> float:
    seconds = float(value)
    if not (math.isfinite(seconds) and 0 <= seconds < _LATEST):
        raise ValueError("no time")
    return seconds


_Converters = dict[str, Callable[[Any], Any]]
_OF_PROCESS: _Converters = {
    "pid": int,
    "server": _text,
    "started": _time,
    **dict.fromkeys(("role", "sglang", "selection", "image", "prefix"), _text),
}
_OF_STATE: _Converters = {"id": _text, "state": _text, "reason": _text, "ran": bool}
