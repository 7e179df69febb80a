"""A cache of what was parsed from the files of a tree, kept from one process to the next.

It is one file per tree, in this user's cache folder, or in the temporary folder if that can't be
used. An entry is valid for a source file's sha256 and for the present version of our code. Sizes
and times would not do, because reproducible images give other contents the same ones. The cache
only saves time: one that can't be read, or that another user can write, is ignored. What it lacks
of a release's file comes from the table in the package (see `shipped`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import __version__
from ..model import private
from . import shipped

NOTHING: Any = object()
"""Returned by `Cache.get` if there is no entry; None is a value."""

_TREES = 32
"""How many trees are kept; the one written longest ago goes first."""

_Stamp = str
"""Sha256 of a file's content, in hexadecimal."""


def user_folder() -> Path:
    """This project's folder below ``$XDG_CACHE_HOME``, else below ``~/.cache``.

    Raises:
        OSError: this user has no home.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        try:
            base = os.fspath(Path.home() / ".cache")
        except RuntimeError as error:
            raise OSError(str(error)) from error
    return Path(base) / "sglang-perf-patches"


class Cache:
    """The cache of one tree; its file is read at the first call of `get` or `put`.

    Attributes:
        root: the tree's folder.
        name: the name of the cache file.
        trouble: why the usual folder can't be used, and which one is; "" if all is well. Set by
            `save`, only in the first process of a server.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = hashlib.sha256(os.fsencode(root)).hexdigest()[:24] + ".json"
        self.trouble = ""
        self._shipped = shipped.Shipped()
        self._files: dict[str, tuple[_Stamp, dict[str, Any]]] | None = None
        self._stamps: dict[Path, _Stamp | None] = {}
        self._changed: set[str] = set()

    def get(self, path: Path, name: str) -> Any:
        """The value under `name` for the present content of the file at `path`, else `NOTHING`."""
        stamp, files = self._stamp(path), self._loaded()
        if stamp is None:
            return NOTHING
        if files.get(os.fspath(path), (None, {}))[0] != stamp:
            values = self._shipped.of(stamp, os.path.relpath(path, self.root).replace(os.sep, "/"))
            files[os.fspath(path)] = (stamp, values)
            if values:
                self._changed.add(os.fspath(path))
        return files[os.fspath(path)][1].get(name, NOTHING)

    def put(self, path: Path, name: str, value: Any) -> None:
        """Keep a JSON value that was parsed from the file at `path`, if the file is unchanged."""
        stamp = self._stamp(path)
        if stamp is None or stamp != _stamp(path):
            return
        files = self._loaded()
        stamped, values = files.get(os.fspath(path), (None, {}))
        files[os.fspath(path)] = (stamp, {**(values if stamped == stamp else {}), name: value})
        self._changed.add(os.fspath(path))

    def save(self) -> None:
        """Write new entries, and set `trouble` if that fails or needs another folder."""
        if not self._changed:
            return
        try:
            with _private_folder() as (folder, path, why):
                # Another process may have written meanwhile: keep its entries for other files.
                before = _read(folder, self.name, self.root)
                files = {**before, **{name: self._loaded()[name] for name in self._changed}}
                there = {
                    name: kept for name, kept in files.items() if _stamp(Path(name)) == kept[0]
                }
                _write(folder, self.name, self.root, there)
                self._changed.clear()
                _prune(folder)
                if why and not before:
                    self.trouble = f"{why}: what is read of sglang is kept in {path}"
        except OSError as error:
            if not _is_started_by_another():
                self.trouble = f"{error}: nothing that is read of sglang is kept"

    def _loaded(self) -> dict[str, tuple[_Stamp, dict[str, Any]]]:
        if self._files is None:
            self._files = {}
            with contextlib.suppress(OSError), _private_folder() as (folder, _, _):
                self._files = _read(folder, self.name, self.root)
        return self._files

    def _stamp(self, path: Path) -> _Stamp | None:
        """The stamp that the file had when it was first asked for in this process."""
        if path not in self._stamps:
            self._stamps[path] = _stamp(path)
        return self._stamps[path]


def _stamp(path: Path) -> _Stamp | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _made_by() -> str:
    """The maker that a cache file must name to be used: this code, with this Python's syntax."""
    return (
        f"{__version__} {sys.implementation.cache_tag} {_stamp(Path(__file__))} {shipped.makers()}"
    )


def _own() -> Path:
    """The folder of cache files below `user_folder`.

    Raises:
        OSError: this user has no home, or the environment names another user's folder.
    """
    base = user_folder()
    for folder in (base, base.parent):
        if private.is_anothers(folder):
            raise PermissionError(f"{folder} is another user's")
    return base / "judged"


def _temporary() -> Path:
    """The folder of cache files in the temporary folder.

    Raises:
        OSError: there is no temporary folder, or another user can write to ours in it.
    """
    base = Path(private.temporary())
    with contextlib.suppress(FileExistsError):
        base.mkdir(mode=0o700)
    private.require(base, base.lstat())
    return base / "judged"


@contextmanager
def _private_folder() -> Iterator[tuple[int, Path, str]]:
    """A private, writable folder of this user; created if it is missing.

    Returns:
        its descriptor, its path, and why the usual one can't be used ("" if this is it).

    Raises:
        OSError: neither folder can be used.
    """
    why = ""
    for choose in (_own, _temporary):
        try:
            path = choose()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            folder = os.open(path, flags)
        except OSError as error:
            why = why or str(error)
            continue
        try:
            private.require(path, os.fstat(folder))
            if not os.access(path, os.W_OK):
                raise PermissionError(f"{path} can't be written")
        except OSError as error:
            os.close(folder)
            why = why or str(error)
            continue
        try:
            yield folder, path, why
        finally:
            os.close(folder)
        return
    raise OSError(why)


def _is_started_by_another() -> bool:
    """Whether this process was started by `multiprocessing`, as a server's workers are."""
    module = sys.modules.get("multiprocessing.process")
    return module is not None and module.parent_process() is not None


def _read(folder: int, name: str, root: Path) -> dict[str, tuple[_Stamp, dict[str, Any]]]:
    """The entries of a cache file; none if it is missing, damaged, another user's or outdated."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
            about = os.fstat(file.fileno())
            if about.st_uid != os.getuid() or not stat.S_ISREG(about.st_mode):
                return {}
            digest, _, text = file.read().partition(b"\n")
        if hashlib.sha256(text).hexdigest().encode() != digest:
            return {}
        data = json.loads(text)
        if data["made by"] != _made_by() or data["root"] != os.fspath(root):
            return {}
        return {
            str(path): (str(stamp), dict(values)) for path, (stamp, values) in data["files"].items()
        }
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}


def _write(
    folder: int, name: str, root: Path, files: dict[str, tuple[_Stamp, dict[str, Any]]]
) -> None:
    """Replace a cache file atomically."""
    data = {"made by": _made_by(), "root": os.fspath(root), "files": files}
    text = json.dumps(data, separators=(",", ":")).encode()
    part = f"{name}.{os.urandom(8).hex()}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(part, flags, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise


def _prune(folder: int) -> None:
    """Remove the files of all but the last `_TREES` trees, and leftovers of killed processes."""
    ages = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                ages[entry.name] = entry.stat(follow_symlinks=False).st_mtime
    whole = sorted((name for name in ages if name.endswith(".json")), key=lambda name: -ages[name])
    left = [name for name in ages if name.endswith(".part") and ages[name] < time.time() - 600]
    for name in (*whole[_TREES:], *left):
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
