"""Markdown as plain text that fits a terminal: what `help` shows of a page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator

_COMMENT = re.compile(r"^<!-- .*? -->\n?", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"(?ms)^(```.*?^```)$")
_BULLET = re.compile(r"(?m)^(?=- )")


def plain(text: str) -> str:
    """Links, code and emphasis become their words."""
    return _words(text).replace("`", "")


def rows(text: str, words: Callable[[str], str] = plain) -> tuple[tuple[str, ...], ...]:
    """The rows of a table, without the line below the heading; empty without a table.

    Args:
        text: Markdown.
        words: what becomes of a cell.
    """
    cells = [
        tuple(words(cell.strip()) for cell in line.strip().strip("|").split(" | "))
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return tuple(row for row in cells if not all(set(cell) <= set("-: ") and cell for cell in row))


def shown(text: str, columns: int) -> str:
    """A page wrapped to `columns`: each row of a table is an item, code stays as it is."""
    parts = _CODE.split(_COMMENT.sub("", text).strip("\n"))
    blocks = (
        block
        for part in parts
        for block in ([part] if part.startswith("```") else re.split(r"\n\s*\n", part))
    )
    return "\n\n".join("\n".join(_lines(block, columns)) for block in blocks if block.strip())


def _lines(block: str, columns: int) -> Iterator[str]:
    if block.startswith("    "):
        yield block
    elif block.startswith("```"):
        yield from (f"    {line}".rstrip() for line in block.splitlines()[1:-1])
    elif block.startswith("#"):
        heading, _, rest = block.partition("\n")
        yield plain(heading.lstrip("# ")).upper()
        if rest:
            yield from _lines(rest, columns)
    elif block.startswith("|"):
        (_, *heads), *lines = rows(block, _words)
        for first, *others in lines:
            yield from _filled(first, columns, "  ", "    ")
            for head, cell in zip(heads, others, strict=True):
                label = f"{head}: " if len(heads) > 1 and cell else ""
                yield from _filled(label + cell, columns, "      ", "      ")
    elif block.startswith("- "):
        for item in _BULLET.split(block)[1:]:
            yield from _filled(_words(item.removeprefix("- ")), columns, "  - ", "    ")
    else:
        yield from _filled(_words(block), columns, "", "")


def _words(text: str) -> str:
    """Links and emphasis become their words; code keeps its marks."""
    return _LINK.sub(r"\1", text).replace("**", "")


def _filled(text: str, columns: int, start: str, then: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        columns,
        initial_indent=start,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )
