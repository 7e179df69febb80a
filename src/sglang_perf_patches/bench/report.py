"""The results of a benchmark: tables, as text, as JSON and as one self-contained page."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from .. import __version__
from ..model.errors import OperatorError
from . import nvidia, page
from .timing import Ratio

Cell = str | int | float | Ratio | None
"""A float is shown with three significant digits, None as a dash."""


class PageError(OperatorError, RuntimeError):
    """The page can't be written to the given place."""


@dataclass(frozen=True)
class Table:
    """One comparison.

    Attributes:
        set: the patch set that it is about.
        title: what was compared, and where.
        columns: their headings, with units.
        rows: one cell a column.
        notes: what a reader must know: conditions, and what was not measured.
    """

    set: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """The results of ``bench`` for some sets.

    Attributes:
        sglang: the release and its path.
        machine: see `machine`.
        tables: in the order in which they were made.
        ended: set → how it ended: ``equal`` (and measured), ``skipped``, ``different``, ``failed``.
        reasons: set → one sentence, where it was not ``equal``.
        command: what does this again.
    """

    sglang: str
    machine: dict[str, str]
    tables: tuple[Table, ...]
    ended: dict[str, Literal["equal", "skipped", "different", "failed"]]
    reasons: dict[str, str] = field(default_factory=dict)
    command: str = ""


def machine() -> dict[str, str]:
    """What a reader of figures needs to know about this machine; imports no library of sglang's."""
    found = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ""),
        "python": platform.python_version(),
        "sglang-perf-patches": __version__,
        "measured": datetime.now(timezone.utc).isoformat(" ", "minutes"),
    }
    found["gpu"] = ", ".join(nvidia.smi("name"))
    return {key: value for key, value in found.items() if value}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor()


def to_json(report: Report) -> str:
    """The report for machines: a `Ratio` becomes an object of its fields."""
    return json.dumps(asdict(report), indent=1)


def table_to_json(table: Table) -> str:
    """A table on one line, for `table_from_json` in another process."""
    return json.dumps(asdict(table))


def table_from_json(text: str) -> Table:
    """The table that `table_to_json` wrote."""
    data = json.loads(text)
    rows = tuple(
        tuple(Ratio(**cell) if isinstance(cell, dict) else cell for cell in row)
        for row in data["rows"]
    )
    return Table(data["set"], data["title"], tuple(data["columns"]), rows, tuple(data["notes"]))


def to_text(table: Table) -> str:
    """The table for a terminal."""
    cells = [[_shown(cell) for cell in row] for row in table.rows]
    heads = list(table.columns)
    widths = [max(len(row[at]) for row in [heads, *cells]) for at in range(len(heads))]
    left = [all(isinstance(row[at], str) for row in table.rows) for at in range(len(heads))]
    lines = [
        "  ".join(
            text.ljust(width) if is_left else text.rjust(width)
            for text, width, is_left in zip(row, widths, left, strict=True)
        ).rstrip()
        for row in [heads, *cells]
    ]
    return "\n".join([f"{table.set}: {table.title}", "", *lines, "", *table.notes]).rstrip()


def to_html(report: Report) -> str:
    """One page with its styles and plots inside; it refers to nothing outside itself."""
    headlines = [_headline(report, name) for name in report.ended]
    parts = [page.heading(1, headlines[0] if len(headlines) == 1 else "Stock and patched")]
    if len(headlines) > 1:
        parts.append(page.bullets(headlines))
    for name in report.ended:
        tables = [table for table in report.tables if table.set == name]
        parts += [_table_parts(table) for table in tables]
        # A note of several tables is shown once.
        notes = dict.fromkeys(note for table in tables for note in table.notes)
        if notes:
            parts += [page.heading(3, f"Notes on {name}"), page.bullets(notes)]
    parts.append(page.heading(2, "How this was measured"))
    if report.command:
        parts.append(page.code(report.command))
    parts.append(page.facts({"sglang": report.sglang, **report.machine}))
    if any(_ratios(table) for table in report.tables):
        parts.append(page.paragraph(_HOW))
    return page.document("sglang-perf-patches bench", parts)


def headline(name: str, ratios: Sequence[Ratio]) -> str:
    """A set's ratios in a line: ``mla: 11 to 36 % less time in 7 of 8 cases``."""
    less = [ratio for ratio in ratios if ratio.high < 1]
    more = [ratio for ratio in ratios if ratio.low > 1]
    if not less and not more:
        return f"{name}: no difference in time in {_cases(len(ratios))}"
    said = [
        f"{_percents(found)} {word} time in {len(found)} of {_cases(len(ratios))}"
        for found, word in ((less, "less"), (more, "more"))
        if found
    ]
    return f"{name}: {', '.join(said)}"


def require_writable(path: Path) -> None:
    """Say that a page can't be written before anything is measured for it.

    Raises:
        PageError: its folder is not there, or may not be written.
    """
    place = path if path.exists() else path.parent
    if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
        raise PageError(f"{path} can't be written")


def write_page(path: Path, report: Report) -> None:
    """Write `to_html` to a file.

    Raises:
        PageError: it can't be written.
    """
    write_text(path, to_html(report))


def write_text(path: Path, text: str) -> None:
    """Write a page that is made already.

    Raises:
        PageError: it can't be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PageError(f"{path} can't be written: {error.strerror}") from error


def _headline(report: Report, name: str) -> str:
    if report.ended[name] != "equal":
        return f"{name}: {report.ended[name]}: {report.reasons.get(name, '')}".removesuffix(": ")
    ratios = [ratio for table in report.tables if table.set == name for ratio in _ratios(table)]
    return headline(name, ratios) if ratios else f"{name}: the same results as stock"


def _cases(count: int) -> str:
    return f"{count} case{'' if count == 1 else 's'}"


def _percents(ratios: Sequence[Ratio]) -> str:
    ends = sorted(round(100 * abs(1 - ratio.ratio)) for ratio in ratios)
    return f"{ends[0]} %" if ends[0] == ends[-1] else f"{ends[0]} to {ends[-1]} %"


def _ratios(table: Table) -> list[Ratio]:
    return [cell for row in table.rows for cell in row if isinstance(cell, Ratio)]


def _table_parts(table: Table) -> str:
    parts = [page.heading(2, f"{table.set}: {table.title}")]
    for at, column in enumerate(table.columns):
        bars = [_bar(_name(row), row[at]) for row in table.rows if isinstance(row[at], Ratio)]
        what = column.replace("patched : stock", "").strip(", ") or "time"
        parts.append(page.plot(bars, f"{what}: change against stock, less to the left"))
    rows = [[(_for_people(cell), not isinstance(cell, str)) for cell in row] for row in table.rows]
    parts.append(page.table(table.columns, rows))
    return "".join(parts)


def _bar(name: str, ratio: Cell) -> page.Bar:
    assert isinstance(ratio, Ratio)
    tone: page.Tone = "better" if ratio.high < 1 else "worse" if ratio.low > 1 else "none"
    ends = (ratio.ratio - 1, ratio.low - 1, ratio.high - 1)
    return page.Bar(name, *ends, tone, _for_people(ratio))


def _name(row: Sequence[Cell]) -> str:
    """The name of a row: its cells before the first time."""
    before = []
    for cell in row:
        if isinstance(cell, (Ratio, float)):
            break
        before.append(cell)
    words = [str(cell) for at, cell in enumerate(before) if at == 0 or isinstance(cell, str)]
    return ", ".join(words)


def _for_people(cell: Cell) -> str:
    if isinstance(cell, Ratio):
        change, low, high = (
            page.signed(100 * (value - 1)) for value in (cell.ratio, cell.low, cell.high)
        )
        return f"{change} % ({low} to {high})"
    if isinstance(cell, (int, float)):
        return page.number(cell)
    return _shown(cell)


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    return page.number(cell) if isinstance(cell, float) else str(cell)


def worst(words: Sequence[str]) -> int:
    """The exit code of a report that ended so: 1 if something differs or failed."""
    return 1 if {"different", "failed"} & set(words) else 0


_HOW = (
    "Times were taken in turns in one run. A change is that of patched against stock: the median "
    "over the rounds, with its quartiles. It counts as less or more if both quartiles do."
)
