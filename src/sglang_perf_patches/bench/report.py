"""What a benchmark found: tables, as text, as JSON and as one page that can be sent on."""

from __future__ import annotations

import html
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from .. import __version__
from ..model.errors import OperatorError
from .timing import Ratio

Cell = str | int | float | Ratio | None
"""A float is shown with three significant digits, None as a dash."""


class PageError(OperatorError, RuntimeError):
    """The page can't be written where it was asked for."""


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
    """What ``bench`` found for some sets.

    Attributes:
        sglang: the release, and where it is.
        machine: see `machine`.
        tables: in the order in which they were made.
        ended: set → how it ended: ``equal`` (and measured), ``skipped``, ``different``, ``failed``.
        reasons: set → one sentence, where it was not ``equal``.
    """

    sglang: str
    machine: dict[str, str]
    tables: tuple[Table, ...]
    ended: dict[str, Literal["equal", "skipped", "different", "failed"]]
    reasons: dict[str, str] = field(default_factory=dict)


def machine() -> dict[str, str]:
    """This machine, as far as a reader of figures needs it; asks no library that sglang uses."""
    found = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ""),
        "python": platform.python_version(),
        "sglang-perf-patches": __version__,
        "measured": datetime.now(timezone.utc).isoformat(" ", "minutes"),
    }
    tool = shutil.which("nvidia-smi")
    if tool:
        asked = [tool, "--query-gpu=name", "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found["gpu"] = ", ".join(done.stdout.split("\n")).strip(", ")
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
    """One page with its styles and charts inside; it refers to nothing outside itself."""
    machine_rows = "".join(
        f"<tr><th>{html.escape(key)}</th><td>{html.escape(value)}</td></tr>"
        for key, value in {"sglang": report.sglang, **report.machine}.items()
    )
    ended = "".join(
        f"<li><b>{html.escape(name)}</b>: {_ended(report, name)}</li>" for name in report.ended
    )
    tables = "".join(map(_html_table, report.tables))
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<title>sglang-perf-patches bench</title>"
        f"<style>{_STYLE}</style>"
        "<h1>sglang-perf-patches: stock and patched</h1>"
        f"<table class=machine>{machine_rows}</table><ul>{ended}</ul>{tables}"
        "<p>Times were taken in turns in one run; a ratio is patched : stock, the median over the "
        "rounds with its quartiles. A bar shorter than the line is faster than stock.</p></html>\n"
    )


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
    try:
        path.write_text(to_html(report), encoding="utf-8")
    except OSError as error:
        raise PageError(f"{path} can't be written: {error.strerror}") from error


def _ended(report: Report, name: str) -> str:
    word = {"equal": "same results as stock, then measured"}.get(
        report.ended[name], report.ended[name]
    )
    reason = report.reasons.get(name, "")
    return html.escape(f"{word}: {reason}" if reason else word)


def _html_table(table: Table) -> str:
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{_html_cell(cell)}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in table.notes)
    return (
        f"<h2>{html.escape(table.set)}: {html.escape(table.title)}</h2>"
        f"<table><tr>{heads}</tr>{body}</table>{notes}"
    )


def _html_cell(cell: Cell) -> str:
    text = html.escape(_shown(cell))
    if not isinstance(cell, Ratio):
        return text
    # The chart: stock is 80 units wide, so that up to 1.5 of it fits.
    width, low, high = (min(120.0, 80 * value) for value in (cell.ratio, cell.low, cell.high))
    colour = "#2a7d4f" if cell.high <= 1 else "#b3541e" if cell.low > 1 else "#8a8a8a"
    return (
        f"<svg width=122 height=14 role=img aria-label='{text}'>"
        f"<rect width={width:.1f} height=10 y=2 fill='{colour}'/>"
        f"<line x1={low:.1f} x2={high:.1f} y1=7 y2=7 stroke=black />"
        "<line x1=80 x2=80 y1=0 y2=14 stroke=black stroke-dasharray=2 /></svg> " + text
    )


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def worst(words: Sequence[str]) -> int:
    """The exit code of a report that ended so: 1 where something differs or failed."""
    return 1 if {"different", "failed"} & set(words) else 0


_STYLE = (
    "body{font:15px/1.4 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;margin:.6em 0}th,td{padding:.2em .7em;text-align:right;"
    "border-bottom:1px solid #ddd;white-space:nowrap}th:first-child,td:first-child{text-align:left}"
    ".machine th,.machine td{text-align:left;border:0}svg{vertical-align:middle}"
)
