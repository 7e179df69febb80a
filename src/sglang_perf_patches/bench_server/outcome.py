"""The outcome of a comparison of servers, as a conclusion in words, a text and JSON.

`RULE` decides whether the sides differ by more than boots of one side differ from each other. It is
simple enough to be checked by eye. In simulations with equal sides (normal, log-normal, with
outliers) it finds a false difference in 7 of 100 figures with two turns, and in 3 to 5 with more.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist, median
from typing import Any, Literal

from ..model.selection import Selection
from . import patches, redact, tokens
from .boot import Boot
from .sides import Side

FIGURES = {
    "TTFT": "ms",  # time to first token, median
    "TPOT": "ms",  # time per output token after the first, median of the requests
    "throughput": "tok/s",  # output tokens per second
    "TTFT p99": "ms",
    "ITL": "ms",  # time between two tokens, median
    "ITL p99": "ms",
    "host memory": "MB",  # the most resident memory of all processes during the load
    "GPU memory": "MB",  # of all GPUs, after the load, above that before the boot
    "KV capacity": "tokens",  # that the KV cache holds
    "boot": "s",  # from the start of the command until it was ready
}
"""Figure → its unit, the most noticeable ones first."""
_MORE_IS_BETTER = ("throughput", "KV capacity")

RULE = (
    "A difference is beyond the noise if every boot of one side lies on the same side of every "
    "boot of the other, and the two medians are further apart than the boots of either side are "
    "from each other (with two turns: twice as far). From four turns on, if the Mann-Whitney test "
    "gives less than 5 %. Less than half a percent is never beyond it. Between equal servers, 3 to "
    "7 of 100 figures pass."
)
Word = Literal["less", "more", "within", "same", "one turn"]
"""Patched is ``less`` or ``more`` than stock beyond the noise; the difference is ``within`` the
noise; all values are the ``same``; or there was only ``one turn``, which shows no noise."""

_LEVEL = 0.05
_LEAST = 0.005
_DISTANCE = {2: 2.0, 3: 1.0}


@dataclass(frozen=True)
class Change:
    """One figure of both sides."""

    stock: Sequence[float]  # turn by turn; `patched` likewise
    patched: Sequence[float]
    ratio: float  # patched : stock, of the medians
    word: Word


@dataclass(frozen=True)
class Outcome:
    """The whole result."""

    about: Mapping[str, Any]  # what was compared: the release, the machine, the command, the load
    sides: tuple[Side, Side]  # elsewhere ``stock`` means the first, and ``patched`` the second
    turns: int  # how many are complete
    stopped: str  # why there are fewer than requested; "" if there are not
    changes: Mapping[str, Change]  # figure → its values on both sides
    tokens: tokens.Comparison
    live: Sequence[patches.LiveIn]  # the live patches of the second side
    live_in_first: Sequence[patches.LiveIn]  # those of the first side; stock has none
    failed: Mapping[str, str]  # patch that was refused, in conflict or failed → why
    lost: Sequence[str]  # the patches that were chosen by name and are not available

    @property
    def is_described(self) -> bool:
        """Whether the operator described the sides; else they are stock and patched."""
        return self.sides[0].name != "stock"


def compared(
    taken: Sequence[tuple[Boot, Boot]],
    sides: tuple[Side, Side],
    selection: Selection,
    *,
    about: Mapping[str, Any],
    stopped: str,
) -> Outcome:
    """The outcome of the completed turns; `selection` is that of the second side."""
    stock, patched = zip(*taken, strict=True)
    changes = {}
    for name in FIGURES:
        values = [[boot.figures[name] for boot in side] for side in (stock, patched)]
        if all(value > 0 for side in values for value in side):
            changes[name] = change(*values)
    records = [record for boot in patched for record in boot.records]
    return Outcome(
        about={**about, "model": redact.model_name(stock[0].model)},
        sides=sides,
        turns=len(taken),
        stopped=stopped,
        changes=changes,
        tokens=tokens.compare(
            [boot.tokens for boot in stock], [boot.tokens for boot in patched], sides[0].name
        ),
        live=patches.summary(records),
        live_in_first=patches.summary(record for boot in stock for record in boot.records),
        failed=patches.failed(records),
        lost=patches.lost(records, selection),
    )


def change(stock: Sequence[float], patched: Sequence[float]) -> Change:
    """Compare the values of both sides, one per turn; stock's must be above zero."""
    ratio = median(patched) / median(stock)
    word: Word = "within"
    if len(stock) < 2:
        word = "one turn"
    elif len({*stock, *patched}) == 1:
        word = "same"
    elif abs(1 - ratio) > _LEAST and _is_beyond(stock, patched):
        word = "less" if ratio < 1 else "more"
    return Change(stock, patched, ratio, word)


def _is_beyond(stock: Sequence[float], patched: Sequence[float]) -> bool:
    distance = _DISTANCE.get(len(stock))
    if distance is None:
        return mann_whitney(stock, patched) < _LEVEL
    is_apart = max(patched) < min(stock) or min(patched) > max(stock)
    spread = max(max(side) - min(side) for side in (stock, patched))
    return is_apart and abs(median(patched) - median(stock)) > distance * spread


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p-value of the Mann-Whitney U test, by the normal approximation.

    A tie counts half. For 4 to 10 turns it is below 5 % where the exact value is, except for the
    least clear order of 8 turns (exact: 4.99 %).
    """
    above = sum((a > b) + (a == b) / 2 for a in first for b in second)
    pairs = len(first) * len(second)
    deviation = math.sqrt(pairs * (len(first) + len(second) + 1) / 12)
    distance = max(0.0, abs(above - pairs / 2) - 0.5) / deviation
    return 2 * NormalDist().cdf(-distance)


def exit_code(outcome: Outcome) -> int:
    """0 if there are two turns, tokens are equal and no patch chosen by name is missing; else 1."""
    is_equal = outcome.tokens.word != "different"
    is_whole = not outcome.stopped and not outcome.lost
    return 0 if outcome.turns >= 2 and is_equal and is_whole else 1


def judgement(figure: str, change: Change) -> str:
    """``better`` or ``worse`` beyond the noise, else ``noise``, or ``unknown`` after one turn."""
    if change.word not in ("less", "more"):
        return "unknown" if change.word == "one turn" else "noise"
    return "better" if (change.word == "more") == (figure in _MORE_IS_BETTER) else "worse"


def conclusion(outcome: Outcome) -> str:
    """The answer, in one or two sentences."""
    early = f" It stopped early: {outcome.stopped}." if outcome.stopped else ""
    if outcome.turns < 2:
        no = "No conclusion: one turn does not show how much boots differ. Take --turns 3."
        return f"{no}{early}"
    first, second = outcome.sides
    than = f"{second.name} than with {first.name}" if outcome.is_described else "patches"
    judged: dict[str, list[str]] = {}
    for name, change in outcome.changes.items():
        judged.setdefault(judgement(name, change), []).append(f"{name} {amount(change)}")
    sentences = ["The greedy tokens differ!"] if outcome.tokens.word == "different" else []
    sentences += [
        f"{word.capitalize()} with {than}: {', '.join(judged[word])}."
        for word in ("better", "worse")
        if word in judged
    ]
    if "worse" not in judged:
        what = "Nothing got worse" if "better" in judged else "No difference"
        sentences.append(f"{what} beyond the noise.")
    if outcome.tokens.word == "unsteady":
        sentences.append(
            f"Greedy tokens could not be compared: {first.name}'s own differ from boot to boot."
        )
    return " ".join(sentences) + early


def amount(change: Change) -> str:
    """The change of the medians in words: ``12 % less``."""
    percent = round(abs(change.ratio - 1) * 100)
    if change.ratio > 2:
        return f"{change.ratio:.1f} times"
    return f"{percent} % {'less' if change.ratio < 1 else 'more'}" if percent else "the same"


def to_text(outcome: Outcome) -> str:
    """The conclusion, then figures, tokens and patches, for a terminal."""
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
            f"median boot, with the lowest and the highest. {RULE}",
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


def to_json(outcome: Outcome) -> str:
    """The outcome as JSON."""
    data = asdict(outcome)
    data |= data.pop("about")
    data["sides"] = [
        {"name": one.name, "adds": one.adds, "selection": one.selection} for one in outcome.sides
    ]
    data["conclusion"] = conclusion(outcome)
    data["rule"] = RULE
    data["exit_code"] = exit_code(outcome)
    for name, change in outcome.changes.items():
        data["changes"][name] |= {"unit": FIGURES[name], "is": judgement(name, change)}
    return json.dumps(data, indent=1)
