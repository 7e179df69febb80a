"""Markdown as plain text that fits a terminal: what `help` shows of a page."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .render import filled, item

_COMMENT = re.compile(r"^<!-- .*? -->\n?", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"(?ms)^(```.*?^```)$")
_BULLET = re.compile(r"(?m)^(?=- )")


def plain(text: str) -> str:
    """Links, code and emphasis become their words."""
    return _words(text).replace("`", "")


def rows(text: str) -> tuple[tuple[str, ...], ...]:
    """The rows of a Markdown table, without the line below the heading; empty without a table."""
    cells = [
        tuple(_words(cell.strip()) for cell in line.strip().strip("|").split(" | "))
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return tuple(row for row in cells if not all(set(cell) <= set("-: ") and cell for cell in row))


def shown(text: str) -> str:
    """A page wrapped as `render.filled` does: each row of a table is an item, code stays as is."""
    parts = _CODE.split(_COMMENT.sub("", text).strip("\n"))
    blocks = (
        block
        for part in parts
        for block in ([part] if part.startswith("```") else re.split(r"\n\s*\n", part))
    )
    return "\n\n".join("\n".join(_lines(block)) for block in blocks if block.strip())


def _lines(block: str) -> Iterator[str]:
    if block.startswith("    "):
        yield block
    elif block.startswith("```"):
        yield from (f"    {line}".rstrip() for line in block.splitlines()[1:-1])
    elif block.startswith("#"):
        heading, _, rest = block.partition("\n")
        yield plain(heading.lstrip("# ")).upper()
        if rest:
            yield from _lines(rest)
    elif block.startswith("|"):
        (what, *heads), *lines = rows(block)
        yield filled(f"{heads[0]}, by {what}:" if len(heads) == 1 else f"{what}:", "  ")
        for first, *others in lines:
            labels = [f"{head}: " if len(heads) > 1 else "" for head in heads]
            cells = zip(labels, others, strict=True)
            yield item(f"{first}: {'; '.join(label + cell for label, cell in cells if cell)}")
    elif block.startswith("- "):
        yield from (item(_words(each.removeprefix("- "))) for each in _BULLET.split(block)[1:])
    else:
        yield filled(_words(block))


def _words(text: str) -> str:
    """Links and emphasis become their words; code keeps its marks."""
    return _LINK.sub(r"\1", text).replace("**", "")
