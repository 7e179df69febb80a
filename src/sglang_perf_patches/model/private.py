"""Private folders: what is read there was written by this user.

What belongs below a folder that the environment names, and can't be there, goes to this user's
folder in the temporary folder.
"""

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


def is_anothers(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is there and another user's, as after ``sudo`` with a kept environment."""
    try:
        return os.stat(folder).st_uid != os.getuid()
    except OSError:
        return False


def temporary() -> str:
    """This user's folder in the temporary folder; it may not be there yet.

    Raises:
        OSError: this machine has no temporary folder.
    """
    import tempfile  # imports much that a process with folders of its own does not need

    return below(tempfile.gettempdir())


def below(folder: str) -> str:
    """This user's folder in a folder for all users."""
    return os.path.join(folder, f"sglang-perf-patches-{os.getuid()}")
