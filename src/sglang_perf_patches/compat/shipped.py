"""A table, shipped with the package, of what was parsed from the files of the known releases.

So a process need not parse them, even if it has no cache. An entry is found by a file's content and
path, so the table also helps with a changed release or a source build: only their changed files are
parsed. If the table can't be used, every file is parsed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("releases.xz")
"""Its first line is `makers` at the time of writing; then it has a line for each file."""

_MAKERS = ("definition", "elsewhere", "parsing", "source", "statements", "surroundings")


def makers() -> str:
    """Sha256 of our code that parses files. A table that other code made is not used."""
    here = Path(__file__)
    texts = [here.with_name(f"{name}.py").read_bytes() for name in _MAKERS]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def key(stamp: str, place: str) -> str:
    """The key of a file in the table.

    Args:
        stamp: sha256 of its content, in hexadecimal.
        place: its path relative to the ``sglang`` package, with slashes.
    """
    return f"{stamp} {place}"


class Shipped:
    """The table, read at the first call of `of`."""

    def __init__(self) -> None:
        self._lines: dict[str, str] | None = None

    def of(self, stamp: str, place: str) -> dict[str, Any]:
        """Name → value parsed from a file; empty if the table lacks this content at this place."""
        if self._lines is None:
            self._lines = _read()
        return dict(json.loads(self._lines.get(key(stamp, place), "{}")))


def _read() -> dict[str, str]:
    try:
        import lzma
    except ImportError:  # a Python can be built without it
        return {}
    try:
        made_by, *lines = lzma.decompress(TABLE.read_bytes()).decode().split("\n")
        if made_by != makers():
            return {}
        split = (line.split(" ", 2) for line in lines)
        return {key(stamp, place): text for stamp, place, text in split}
    except (OSError, EOFError, ValueError, lzma.LZMAError):
        return {}
