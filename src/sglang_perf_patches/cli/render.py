"""Formats the command's output: tables that fit the terminal, wrapped text."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

_LEAST = 24  # minimum width in columns for a readable wrapped last cell
PAGE = 80
"""The most columns of prose."""


def be_tolerant() -> None:
    """Make stdout and stderr replace characters that their encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def warn(line: object) -> None:
    """Print a line about trouble on stderr, with the command's name before it."""
    print(f"sglang-perf-patches: {line}", file=sys.stderr)


def width() -> int | None:
    """Columns of the terminal; None if stdout is not a terminal, so lines are not wrapped."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def filled(text: str, start: str = "", then: str | None = None) -> str:
    """A text wrapped to the terminal, to at most `PAGE` columns; its line breaks are ignored.

    `start` is the prefix of the first line, and `then` (None: `start`) of the others.
    """
    then = start if then is None else then
    return _wrapped(" ".join(text.split()), min(PAGE, width() or PAGE), start, then)


def item(text: str) -> str:
    """An entry of a list below a paragraph, wrapped like it."""
    return filled(text, "  - ", "    ")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns as wide as their widest cell; the last column is wrapped to the terminal.

    The first row is the heading.
    """
    widths = [max(map(len, cells)) for cells in zip(*(row[:-1] for row in rows), strict=True)]
    indent = " " * (sum(widths) + 2 * len(widths))
    columns = max(width() or sys.maxsize, len(indent) + _LEAST)
    lines = []
    for *row, last in rows:
        start = "".join(f"{cell:<{size}}  " for cell, size in zip(row, widths, strict=True))
        lines.append(_wrapped(last, columns, start, indent) or start.rstrip())
    return "\n".join(lines)


def _wrapped(text: str, columns: int, start: str, then: str) -> str:
    """A text wrapped without breaking words."""
    return textwrap.fill(
        text,
        columns,
        initial_indent=start,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )
