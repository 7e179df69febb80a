"""Markdown as plain text that fits a terminal: what `help` shows of a page."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..patch_page import plain, rows, words
from .render import filled, item

_COMMENT = re.compile(r"^<!-- .*? -->\n?", re.MULTILINE)
_BULLET = re.compile(r"(?m)^(?=- )")


def shown(text: str) -> str:
    """A page wrapped as `render.filled` does: each row of a table is an item, code stays as is."""
    blocks = re.split(r"\n\s*\n", _COMMENT.sub("", text).strip("\n"))
    return "\n\n".join("\n".join(_lines(block)) for block in blocks if block.strip())


def _lines(block: str) -> Iterator[str]:
    if block.startswith("    "):
        yield block
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
        yield from (item(words(each.removeprefix("- "))) for each in _BULLET.split(block)[1:])
    else:
        yield filled(words(block))
