"""Folders that are one user's alone: what is read there was written by that user."""

from __future__ import annotations

import os
import stat


def require(folder: str | os.PathLike[str], about: os.stat_result) -> None:
    """Refuse a folder that another user owns, can read or write, or could have put there.

    Args:
        folder: its path, for the message.
        about: what ``lstat`` or, for an open one, ``fstat`` says of it.

    Raises:
        PermissionError: it is such a folder, or none.
    """
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a private folder of this user (mode 0700)")
