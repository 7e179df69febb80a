"""A table, shipped with the package, of what was parsed from the files of the known releases.

So a process need not parse them. An entry is found by a file's content and path, so the table also
helps with a changed release or a source build: only their changed files are parsed. If the table
can't be used, every file is parsed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

TABLE = Path(__file__).with_name("releases.xz")
"""Its first line is `makers` at the time of writing; then it has a line for each file."""

_MAKERS = ("definition", "elsewhere", "parsing", "source", "statements", "surroundings")


def makers() -> str:
    """Sha256 of our code that parses files. A table that other code made is not used."""
    here = Path(__file__)
    texts = [here.with_name(f"{name}.py").read_bytes() for name in _MAKERS]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def key(path: Path, root: Path) -> str:
    """The key in the table of a file below a ``sglang`` package: its content and its place."""
    stamp = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{stamp} {path.relative_to(root).as_posix()}"


def table() -> dict[str, str]:
    """The table: `key` → what was parsed, as JSON; empty if the table can't be used."""
    try:
        import lzma
    except ImportError:  # a Python can be built without it
        return {}
    try:
        made_by, *lines = lzma.decompress(TABLE.read_bytes()).decode().split("\n")
        if made_by != makers():
            return {}
        split = (line.split(" ", 2) for line in lines)
        return {f"{stamp} {place}": text for stamp, place, text in split}
    except (OSError, EOFError, ValueError, lzma.LZMAError):
        return {}
