"""The result of this user's last ``bench``, kept for ``report``."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def keep(text: str) -> None:
    """Keep a report's JSON, readable by this user alone; without a place for it, don't."""
    with contextlib.suppress(OSError, RuntimeError):
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
    except (OSError, RuntimeError, UnicodeDecodeError):
        return None


def _path() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sglang-perf-patches" / "last-bench.json"
