"""The results of a benchmark: tables, as text, as JSON and as one self-contained page."""

from __future__ import annotations

import itertools
import json
import os
import platform
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from .. import __version__
from ..model.errors import OperatorError
from . import nvidia, page
from .timing import Ratio

WIDTH = 100
"""Columns of a terminal that a table has at most."""

Cell = str | int | float | Ratio | None
"""A float is shown with three significant digits, None as a dash."""


class PageError(OperatorError, RuntimeError):
    """The page can't be written to the given place."""


@dataclass(frozen=True)
class Counted:
    """What was counted on both sides, where there are no times.

    Attributes:
        what: of what, in a word or two.
        pairs: stock's and patched's count of each case, with the name of the case.
        fewer_is_better: whether a patch is to bring the number down.
    """

    what: str
    pairs: tuple[tuple[str, float, float], ...]
    fewer_is_better: bool = False


@dataclass(frozen=True)
class Table:
    """One comparison.

    Attributes:
        set: the patch set that it is about.
        title: what was compared, and where.
        columns: their headings, with units.
        rows: one cell a column.
        notes: what a reader must know: conditions, and what was not measured.
        counted: the verdict's counts, where there are no times.
    """

    set: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    counted: Counted | None = None


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
    facts = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ""),
        "python": platform.python_version(),
        "sglang-perf-patches": __version__,
        "measured": datetime.now(timezone.utc).isoformat(" ", "minutes"),
    }
    facts["gpu"] = ", ".join(nvidia.smi("name"))
    return {key: value for key, value in facts.items() if value}


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
    counted = data["counted"] and Counted(
        **{**data["counted"], "pairs": tuple(map(tuple, data["counted"]["pairs"]))}
    )
    texts = tuple(data["columns"]), rows, tuple(data["notes"])
    return Table(data["set"], data["title"], *texts, counted)


def to_text(table: Table, columns: int = WIDTH) -> str:
    """The table for a terminal of so many columns, of which it takes at most `WIDTH`.

    A wider one is several below each other, each with the columns that name its rows.
    """
    columns = min(columns, WIDTH)
    cells = [[_shown(cell) for cell in row] for row in table.rows]
    widths = [
        max(len(row[at]) for row in [table.columns, *cells]) for at in range(len(table.columns))
    ]
    left = [all(isinstance(row[at], str) for row in table.rows) for at in range(len(widths))]
    lines_of = []
    for shown in blocks(widths, _naming(table), columns):
        lines = [
            "  ".join(
                row[at].ljust(widths[at]) if left[at] else row[at].rjust(widths[at]) for at in shown
            ).rstrip()
            for row in [table.columns, *cells]
        ]
        lines_of += [*lines, ""]
    title, *notes = (
        textwrap.fill(text, columns) for text in (f"{table.set}: {table.title}", *table.notes)
    )
    return "\n".join([title, "", *lines_of, *notes]).rstrip()


def blocks(widths: Sequence[int], named: int, columns: int) -> list[list[int]]:
    """The columns of each table below each other, so that none is too wide.

    Args:
        widths: of the columns, which stand two apart.
        named: how many at the beginning are in every table.
        columns: of the terminal.
    """
    if sum(widths) + 2 * (len(widths) - 1) <= columns:
        return [[*range(len(widths))]]
    head = [*range(min(named, len(widths) - 1))]
    start = sum(widths[at] + 2 for at in head)
    tables, room = [[*head]], columns - start
    for at in range(len(head), len(widths)):
        if widths[at] > room and len(tables[-1]) > len(head):
            tables.append([*head])
            room = columns - start
        tables[-1].append(at)
        room -= widths[at] + 2
    return tables


def to_html(report: Report) -> str:
    """One page with its styles and plots inside; it refers to nothing outside itself."""
    headlines = [verdict(report, name) for name in report.ended]
    if len(headlines) == 1:
        title, *headlines = verdicts(report, *report.ended)
    else:
        title = "Stock and patched"
    parts = [page.heading(1, title), page.bullets(headlines)]
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


def verdict(report: Report, name: str) -> str:
    """What came of a set, in a line: ``mla: faster in 7 of 8 cases, 0.64 to 0.89 of …``."""
    return "; ".join(verdicts(report, name))


def verdicts(report: Report, name: str) -> list[str]:
    """The same in parts: of the times, then of each thing that was counted."""
    if report.ended[name] != "equal":
        return [f"{name}: {report.ended[name]}: {report.reasons.get(name, '')}".removesuffix(": ")]
    tables = [table for table in report.tables if table.set == name]
    ratios = [ratio for table in tables for ratio in _ratios(table)]
    parts = [
        *([headline(ratios)] if ratios else []),
        *(_counts(table.counted) for table in tables if table.counted),
    ]
    first, *rest = parts or ["equal to stock; nothing was timed"]
    return [f"{name}: {first}", *rest]


def headline(ratios: Sequence[Ratio]) -> str:
    """Ratios in a line: ``faster in 7 of 8 cases, 0.64 to 0.89 of stock's time``.

    A case is faster or slower where both quartiles are; else it is within the spread.
    """
    less = [ratio for ratio in ratios if ratio.high < 1]
    more = [ratio for ratio in ratios if ratio.low > 1]
    if not less and not more:
        return f"no difference in time beyond the spread in {_cases(len(ratios))}"
    phrases = [
        f"{word} in {len(group)} of {_cases(len(ratios))}, {_ends(group)} of stock's time"
        for group, word in ((less, "faster"), (more, "slower"))
        if group
    ]
    rest = len(ratios) - len(less) - len(more)
    return "; ".join([*phrases, *([f"no difference beyond the spread in {rest}"] if rest else [])])


def _counts(counted: Counted) -> str:
    """Counts in a line: ``admitted: more in 5 of 6 cases, at most 7 → 64``."""
    pairs = [pair for _, *pair in counted.pairs]
    more = [pair for pair in pairs if pair[1] > pair[0]]
    less = [pair for pair in pairs if pair[1] < pair[0]]
    phrases = []
    for group, word in ((more, "more"), (less, "fewer")):
        if group:
            stock, patched = max(group, key=lambda pair: abs(pair[1] - pair[0]))
            ends = f"{page.number(stock)} → {page.number(patched)}"
            phrases.append(f"{word} in {len(group)} of {_cases(len(pairs))}, at most {ends}")
    same = f"no more and no fewer than stock in {_cases(len(pairs))}"
    return f"{counted.what}: {'; '.join(phrases) or same}"


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


def _cases(count: int) -> str:
    return f"{count} case{'' if count == 1 else 's'}"


def _ends(ratios: Sequence[Ratio]) -> str:
    ends = sorted(f"{ratio.ratio:.2f}" for ratio in ratios)
    return ends[0] if ends[0] == ends[-1] else f"{ends[0]} to {ends[-1]}"


def _ratios(table: Table) -> list[Ratio]:
    return [cell for row in table.rows for cell in row if isinstance(cell, Ratio)]


def _table_parts(table: Table) -> str:
    parts = [page.heading(2, f"{table.set}: {table.title}")]
    for at, column in enumerate(table.columns):
        bars = [
            _bar(_name(table, row), row[at]) for row in table.rows if isinstance(row[at], Ratio)
        ]
        what = column.replace("patched : stock", "").strip(", ") or "time"
        parts.append(page.plot(bars, f"{what}, patched : stock; faster to the left", page.ratio))
    if table.counted is not None:
        counted = table.counted
        lines = [_span(*pair, counted.fewer_is_better) for pair in counted.pairs]
        best = "fewer is better" if counted.fewer_is_better else "more is better"
        parts.append(page.spans(lines, f"{counted.what}: from stock, the dot, to patched; {best}"))
    rows = [[(_for_people(cell), not isinstance(cell, str)) for cell in row] for row in table.rows]
    parts.append(page.table(table.columns, rows))
    return "".join(parts)


def _bar(name: str, ratio: Cell) -> page.Bar:
    assert isinstance(ratio, Ratio)
    tone: page.Tone = "better" if ratio.high < 1 else "worse" if ratio.low > 1 else "none"
    ends = (ratio.ratio - 1, ratio.low - 1, ratio.high - 1)
    return page.Bar(name, *ends, tone, _for_people(ratio))


def _span(name: str, stock: float, patched: float, fewer_is_better: bool) -> page.Span:
    gained = stock - patched if fewer_is_better else patched - stock
    tone: page.Tone = "better" if gained > 0 else "worse" if gained < 0 else "none"
    text = f"{page.number(stock)} → {page.number(patched)}"
    return page.Span(name, stock, patched, tone, text)


def _naming(table: Table) -> int:
    """How many columns say what a row is of: those before the first of a side."""
    if not table.rows:
        return 1
    row = table.rows[0]
    sides = [at for at, head in enumerate(table.columns) if "stock" in head]
    times = [at for at, cell in enumerate(row) if isinstance(cell, Ratio)]
    values = [at for at, cell in enumerate(row) if isinstance(cell, float)]
    return min([*sides, *times] or [*values, len(row)])


def _name(table: Table, row: Sequence[Cell]) -> str:
    """The name of a row: its cells before the first time, a number with its heading."""
    pairs = zip(table.columns, row, strict=True)
    before = itertools.takewhile(lambda pair: not isinstance(pair[1], (Ratio, float)), pairs)
    return ", ".join(
        str(cell) if isinstance(cell, str) else f"{head} {_shown(cell)}" for head, cell in before
    )


def _for_people(cell: Cell) -> str:
    return str(cell).replace("-", " to ") if isinstance(cell, Ratio) else _shown(cell)


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    return page.number(cell) if isinstance(cell, float) else str(cell)


def worst(words: Sequence[str]) -> int:
    """The exit code of a report that ended so: 1 if something differs or failed."""
    return 1 if {"different", "failed"} & set(words) else 0


_HOW = (
    "Times were taken in turns in one run. A ratio is patched : stock, the median over the rounds, "
    "with its quartiles. A case counts as faster or slower if both quartiles do."
)
