"""The result of this user's last ``bench``, kept for ``report``."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ..judge.cache import user_folder


def keep(text: str) -> None:
    """Keep a report's JSON, readable by this user alone; without a place for it, don't."""
    with contextlib.suppress(OSError):
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        part.replace(path)


def read() -> str | None:
    """What was kept; None if there is nothing, or it belongs to another user."""
    try:
        path = _path()
        if path.lstat().st_uid != os.getuid():
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _path() -> Path:
    return user_folder() / "last-bench.json"
