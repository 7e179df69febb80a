"""Formats the command's output: tables that fit the terminal, wrapped text, Markdown."""

from __future__ import annotations

import io
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence

from .. import patch_page

_LEAST = 24  # minimum width in columns for a readable wrapped last cell
PAGE = 80
"""The most columns of prose."""

_COMMENT = re.compile(r"^<!-- .*? -->\n?", re.MULTILINE)
_BULLET = re.compile(r"(?m)^(?=- )")


def be_tolerant() -> None:
    """Make stdout and stderr replace characters that their encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


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
    widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in rows), strict=True)]
    indent = " " * (sum(widths) + 2 * len(widths))
    columns = max(width() or sys.maxsize, len(indent) + _LEAST)
    lines = []
    for *row, last in rows:
        start = "".join(f"{cell:<{size}}  " for cell, size in zip(row, widths, strict=True))
        lines.append(_wrapped(last, columns, start, indent) or start.rstrip())
    return "\n".join(lines)


def markdown(text: str) -> str:
    """A Markdown page wrapped as by `filled`: each row of a table is an item, code stays as is."""
    blocks = re.split(r"\n\s*\n", _COMMENT.sub("", text).strip("\n"))
    return "\n\n".join("\n".join(_lines(block)) for block in blocks if block.strip())


def _lines(block: str) -> Iterator[str]:
    if block.startswith("    "):
        yield block
    elif block.startswith("#"):
        heading, _, rest = block.partition("\n")
        yield patch_page.plain(heading.lstrip("# ")).upper()
        if rest:
            yield from _lines(rest)
    elif block.startswith("|"):
        (what, *heads), *lines = patch_page.rows(block)
        yield filled(f"{heads[0]}, by {what}:" if len(heads) == 1 else f"{what}:", "  ")
        for first, *others in lines:
            labels = [f"{head}: " if len(heads) > 1 else "" for head in heads]
            cells = zip(labels, others, strict=True)
            yield item(f"{first}: {'; '.join(label + cell for label, cell in cells if cell)}")
    elif block.startswith("- "):
        for each in _BULLET.split(block)[1:]:
            yield item(patch_page.words(each.removeprefix("- ")))
    else:
        yield filled(patch_page.words(block))


def _wrapped(text: str, columns: int, start: str, then: str) -> str:
    return textwrap.fill(
        text,
        columns,
        initial_indent=start,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )
