"""An outcome as words and tables, for the terminal."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Iterator, Sequence

from . import noise
from .noise import Change
from .outcome import FIGURES, Figure, Outcome, amount, conclusion

WIDTH = 100
"""The maximum width of a table on a terminal, in columns."""


def to_text(outcome: Outcome, columns: int = WIDTH) -> str:
    """The text for a terminal: the conclusion, then figures, tokens and patches."""
    columns = min(columns, WIDTH)
    parts = [textwrap.fill(conclusion(outcome), columns)]
    if outcome.is_described:
        parts.append("\n".join(f"{name}: {adds}" for name, adds in described(outcome)))
    parts.append(_table(rows(outcome), columns))
    parts.append("\n".join(facts(outcome)))
    parts.append("\n".join(textwrap.fill(note, columns) for note in notes(outcome)))
    return "\n\n".join(parts)


def rows(outcome: Outcome) -> list[list[str]]:
    """The rows of the table of figures, with its heading."""
    names = [side.name for side in outcome.sides]
    lines = [["figure", "unit", *names, f"{names[1]} is", "beyond noise"]]
    for figure in FIGURES:
        change = outcome.changes.get(figure.name)
        if change is not None:
            sides = [spread(values) for values in (change.stock, change.patched)]
            lines.append(
                [figure.name, figure.unit, *sides, amount(change), judgement(figure, change)]
            )
    return lines


def judgement(figure: Figure, change: Change) -> str:
    """The judgement of a change: noise or not, better or worse."""
    if change.word == "one turn":
        return "unknown"
    is_better = figure.is_better(change)
    return "no" if is_better is None else "yes, better" if is_better else "yes, worse"


def facts(outcome: Outcome) -> Iterator[str]:
    """A line each for tokens, live patches, and patches that were not live."""
    yield f"greedy tokens: {outcome.tokens.sentence}"
    for side, live in zip(outcome.sides, (outcome.live_in_first, outcome.live), strict=True):
        for one in live:
            name = f"{side.name}: " if outcome.live_in_first else ""
            run = f"run in {one.ran}" if one.ran else "none has run it"
            processes = "process" if one.live == 1 else "processes"
            yield f"{name}{one.patch}: live in {one.live} {one.role} {processes}, {run}"
    for id, why in outcome.failed.items():
        yield f"{id}: {why}"
    if outcome.stopped is not None:
        yield f"{len(outcome.boots)} of {outcome.turns} turns are complete"


def described(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """A line for each side: its name, and what it adds to the command."""
    for side in outcome.sides:
        yield side.name, side.adds or "the command as it is"


def notes(outcome: Outcome) -> Iterator[str]:
    """The notes that a reader of the figures needs."""
    first, second = outcome.sides
    turns = len(outcome.boots)
    yield (
        f"{turns} turn{'s' if turns > 1 else ''} of two boots each, the order alternating. For "
        f"{first.name} and {second.name}: the median boot, with the lowest and the highest. The "
        "change: the median turn, likewise."
    )
    yield noise.RULE


def spread(values: Sequence[float]) -> str:
    """The median, with the lowest and the highest if there are several."""
    middle, low, high = map(number, (statistics.median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low}-{high})"


def number(value: float) -> str:
    """A number with three significant digits, and never fewer than all before the point."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 6)}f}"


def _table(lines: Sequence[Sequence[str]], columns: int) -> str:
    """The table of figures; in a narrow terminal a second table below has the changes."""
    whole = _aligned(lines)
    if max(map(len, whole.splitlines())) <= columns:
        return whole
    sides = _aligned([line[:4] for line in lines])
    return f"{sides}\n\n{_aligned([[*line[:2], *line[4:]] for line in lines])}"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
