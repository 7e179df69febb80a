"""An outcome as words and a table, for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from statistics import median

from . import noise
from .outcome import FIGURES, Outcome, amount, conclusion, judgement


def of(outcome: Outcome) -> str:
    """The conclusion, then figures, tokens and patches."""
    parts = [textwrap.fill(conclusion(outcome), 80)]
    if outcome.is_described:
        sides = [f"{side.name}: {side.adds or 'the command as it is'}" for side in outcome.sides]
        parts.append("\n".join(sides))
    parts += [_table(outcome), "\n".join(_facts(outcome))]
    first, second = (side.name for side in outcome.sides)
    turns = f"{outcome.turns} turn{'s' if outcome.turns > 1 else ''}"
    parts.append(
        textwrap.fill(
            f"{turns} of two boots each, the order alternating. For {first} and {second}: the "
            f"median boot, with the lowest and the highest. {noise.RULE}",
            80,
        )
    )
    return "\n\n".join(parts)


def _table(outcome: Outcome) -> str:
    first, second = (side.name for side in outcome.sides)
    rows = [["figure", "unit", first, second, f"{second} is", ""]]
    for name, change in outcome.changes.items():
        sides = spread(change.stock), spread(change.patched)
        rows.append([name, FIGURES[name], *sides, amount(change), judgement(name, change)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _facts(outcome: Outcome) -> Iterator[str]:
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


def spread(values: Sequence[float]) -> str:
    """The median, with the lowest and the highest if there are several; three digits each."""
    numbers = [median(values), min(values), max(values)]
    middle, low, high = (f"{one:.0f}" if one >= 100 else f"{one:.3g}" for one in numbers)
    return middle if low == high else f"{middle} ({low}-{high})"
