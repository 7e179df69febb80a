"""How the command shows text: tables fitted to the terminal, colour, and any stdout."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence

_CODES = {"green": "32", "yellow": "33", "red": "31"}
_LEAST = 24  # minimum width in columns for a readable wrapped last cell
_PAGE = 96
_LABEL = 12  # characters of a heading that stands in front of each cell; below a longer one, none


def be_tolerant() -> None:
    """Let stdout and stderr take any text, whatever their encoding can write."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def width() -> int | None:
    """Columns of the terminal; None where stdout is none, and a line may be as long as it is."""
    return shutil.get_terminal_size().columns if _is_terminal() else None


def paint(text: str, colour: str) -> str:
    """Text in a colour on a terminal that has some, unless ``NO_COLOR`` is set."""
    if not colour or not _is_terminal() or os.environ.get("NO_COLOR"):
        return text
    return text if os.environ.get("TERM") == "dumb" else f"\033[{_CODES[colour]}m{text}\033[0m"


def filled(text: str, start: str = "", then: str | None = None) -> str:
    """A text wrapped at the terminal's edge, or at a page's width.

    Args:
        text: without line breaks that matter; a word that is longer than a line stays whole.
        start: what the first line begins with.
        then: what the others begin with; as the first for None.
    """
    return textwrap.fill(
        " ".join(text.split()),
        min(_PAGE, width() or _PAGE),
        initial_indent=start,
        subsequent_indent=start if then is None else then,
        break_long_words=False,
        break_on_hyphens=False,
    )


def paragraph(title: str, text: str) -> str:
    """A heading and a text below it, indented and wrapped."""
    return f"{title}:\n{filled(text, '  ')}"


def item(text: str) -> str:
    """An entry of a list below a paragraph, wrapped like it."""
    return filled(text, "  - ", "    ")


def table(
    rows: Sequence[Sequence[str]],
    *,
    column: int = -1,
    colours: Mapping[str, str] | None = None,
    below: int = 1,
) -> str:
    """Columns as wide as their widest cell; the last one is wrapped at the terminal's edge.

    Where the terminal has no room for it, the last columns stand below the row.

    Args:
        rows: the first is the heading.
        column: the one that is coloured.
        colours: text of such a cell → its colour.
        below: how many columns these are; more than one are named there.
    """
    widths = [max(map(len, cells)) for cells in zip(*(row[:-1] for row in rows), strict=True)]
    indent = sum(widths) + 2 * len(widths)
    room = width()
    if room is not None and room - indent < _LEAST:
        return _stacked(rows, below, column, colours or {}, room)
    lines = []
    for row in rows:
        last = [row[-1]] if room is None else _wrapped(row[-1], room - indent)
        lines.append("  ".join([*_cells(row, widths, column, colours or {}), last[0]]).rstrip())
        lines += [" " * indent + text for text in last[1:]]
    return "\n".join(lines)


def _cells(
    row: Sequence[str], widths: Sequence[int], column: int, colours: Mapping[str, str]
) -> list[str]:
    """The first cells of a row, as wide as their columns."""
    cells = [cell.ljust(size) for cell, size in zip(row, widths, strict=False)]
    if 0 <= column < len(cells):
        cells[column] = paint(cells[column], colours.get(row[column], ""))
    return cells


def _wrapped(text: str, columns: int) -> list[str]:
    """Lines of words that stay whole."""
    return textwrap.wrap(text, columns, break_long_words=False, break_on_hyphens=False) or [""]


def _stacked(
    rows: Sequence[Sequence[str]], below: int, column: int, colours: Mapping[str, str], room: int
) -> str:
    """The last cells of each row below it; several have their columns' headings before them."""
    heads = [head.lower() for head in rows[0][-below:]]
    widths = [max(map(len, cells)) for cells in zip(*(row[:-below] for row in rows), strict=True)]
    lines = ["  ".join(_cells(rows[0], widths, column, colours)).rstrip()]
    for row in rows[1:]:
        lines.append("  ".join(_cells(row, widths, column, colours)).rstrip())
        pairs = [pair for pair in zip(heads, row[-below:], strict=True) if pair[1] not in "-"]
        named = [pair for pair in pairs if below > 1 and len(pair[0]) <= _LABEL]
        for each in [
            "; ".join(map(": ".join, named)),
            *(c for h, c in pairs if (h, c) not in named),
        ]:
            lines += textwrap.wrap(
                each, max(_LEAST, room), initial_indent=" " * 4, subsequent_indent=" " * 4
            )
    return "\n".join(lines)


def _is_terminal() -> bool:
    try:
        return sys.stdout.isatty()
    except ValueError:  # closed
        return False
