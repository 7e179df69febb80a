"""What was read of the files of the known releases, which the package brings along.

A process then need not parse them, even where it has no place for a cache. An entry is for a file's
content and place in the tree, so it serves a changed release and a source build too: only their
other files are parsed. Where the table can't be used, every file is parsed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("releases.xz")
"""A line for each file, after one for the code of ours that read them."""

_MAKERS = ("definition", "elsewhere", "parsing", "source", "statements", "surroundings")


def makers() -> str:
    """What identifies the code on which it depends what is read of a file."""
    here = Path(__file__)
    texts = [here.with_name(f"{name}.py").read_bytes() for name in _MAKERS]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def key(stamp: str, place: str) -> str:
    """How the table calls a file.

    Args:
        stamp: sha256 of its content, in hexadecimal.
        place: its path in the ``sglang`` package.
    """
    return f"{stamp} {place}"


class Shipped:
    """The table, read at the first question."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._lines: dict[str, str] | None = None

    def of(self, stamp: str, place: str) -> dict[str, Any]:
        """What the table has of a file, by name; nothing if it does not know this content."""
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
