"""The folders of this user, and whether only this user can read and write one."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def cache() -> Path:
    """This project's folder below ``$XDG_CACHE_HOME``, else below ``~/.cache``.

    It raises OSError if this user has no home.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        try:
            base = os.fspath(Path.home() / ".cache")
        except RuntimeError as error:
            raise OSError(str(error)) from error
    return Path(base) / "sglang-perf-patches"


def require(folder: str | os.PathLike[str], about: os.stat_result) -> None:
    """Refuse a folder that another user owns, can read or write, or could have put there.

    It raises PermissionError then. `about` is its ``lstat``, or its ``fstat`` if it is open.
    """
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a private folder of this user (mode 0700)")


def temporary() -> str:
    """This user's folder in the temporary folder; it may not exist yet.

    It raises OSError if this machine has no temporary folder.
    """
    import tempfile  # a heavy import that most processes don't need

    return below(tempfile.gettempdir())


def below(folder: str) -> str:
    """The path of this user's folder in a folder that all users share."""
    return os.path.join(folder, f"sglang-perf-patches-{os.getuid()}")
