"""The outcome of a comparison of servers: figures, tokens, patches, and a conclusion in words."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..model.selection import Selection
from . import noise, patches, redact, tokens
from .boot import Boot
from .noise import Change
from .sides import Side
from .turns import Stopped


@dataclass(frozen=True)
class Figure:
    """A quantity that is measured; `means` says in words what it is."""

    name: str
    unit: str
    means: str
    less_is_better: bool = True

    def is_better(self, change: Change) -> bool | None:
        """Whether a change beyond the noise is an improvement; None for any other change."""
        if change.word not in ("less", "more"):
            return None
        return (change.word == "less") == self.less_is_better


FIGURES = (
    Figure("TTFT", "ms", "time to first token, median"),
    Figure("TPOT", "ms", "time per output token after the first, median of the requests"),
    Figure("throughput", "tokens/s", "output tokens per second", less_is_better=False),
    Figure("TTFT p99", "ms", "time to first token, 99th percentile"),
    Figure("ITL", "ms", "time between two tokens, median"),
    Figure("ITL p99", "ms", "time between two tokens, 99th percentile"),
    Figure("host memory", "MB", "the most resident memory of all processes during the load"),
    Figure("GPU memory", "MB", "memory of all GPUs after the load, above that before the boot"),
    Figure("KV capacity", "tokens", "tokens that the KV cache holds", less_is_better=False),
    Figure("boot", "s", "from the start of the command until it was ready"),
)
"""The most noticeable ones are first."""


@dataclass(frozen=True)
class Outcome:
    """The whole result.

    Attributes:
        machine: as `machine.facts` gives it.
        model: the last name of the model's path.
        command: the operator's command, as `redact` shows it.
        repeat: the command that repeats this comparison.
        load: the options of bench_serving.
        turns: how many were requested.
        changes: figure → its values on both sides.
        tokens: the comparison of greedy tokens.
        live: the live patches of the second side.
        failed: patch that was refused, in conflict or failed → why.
        lost: the patches that were chosen by name and are not available.
        stopped: why there are fewer turns than requested; None if there are not.
        boots: the figures of each boot, turn by turn: stock's, patched's.
        sides: the two sides. If the operator described them, ``stock`` in the other fields means
            the first and ``patched`` the second.
        live_in_first: the live patches of the first side; stock has none.
    """

    sglang: str
    machine: Mapping[str, str]
    model: str
    command: str
    repeat: str
    load: str
    turns: int
    changes: Mapping[str, Change]
    tokens: tokens.Comparison
    live: Sequence[patches.LiveIn]
    failed: Mapping[str, str]
    lost: Sequence[str]
    stopped: Stopped | None
    boots: Sequence[Mapping[str, Mapping[str, float]]]
    sides: tuple[Side, Side]
    live_in_first: Sequence[patches.LiveIn]

    @property
    def is_described(self) -> bool:
        """Whether the operator described the sides; else they are stock and patched."""
        return self.sides[0].name != "stock"

    @property
    def is_conclusive(self) -> bool:
        """Whether there are enough turns for a conclusion, which is two."""
        return len(self.boots) >= 2


def compared(
    taken: Sequence[tuple[Boot, Boot]],
    selection: Selection,
    stopped: Stopped | None,
    sides: tuple[Side, Side],
) -> dict[str, Any]:
    """The fields of an `Outcome` that follow from the turns of two sides."""
    stock, patched = [pair[0] for pair in taken], [pair[1] for pair in taken]
    changes = {}
    for figure in FIGURES:
        values = [
            [boot.figures.get(figure.name, 0.0) for boot in each] for each in (stock, patched)
        ]
        if all(value > 0 for each in values for value in each):
            changes[figure.name] = noise.change(*values)
    records = [record for boot in patched for record in boot.records]
    return {
        "model": redact.model_name(stock[0].model),
        "changes": changes,
        "tokens": tokens.compare(
            [boot.tokens for boot in stock], [boot.tokens for boot in patched], sides[0].name
        ),
        "sides": sides,
        "live_in_first": patches.summary(record for boot in stock for record in boot.records),
        "live": patches.summary(records),
        "failed": patches.failed(records),
        "lost": patches.lost(records, selection),
        "stopped": stopped,
        "boots": [
            {"stock": dict(ours.figures), "patched": dict(theirs.figures)} for ours, theirs in taken
        ],
    }


def exit_code(outcome: Outcome) -> int:
    """0 if it is conclusive, tokens are equal and no patch chosen by name is missing; else 1."""
    is_equal = outcome.tokens.word != "different"
    is_whole = outcome.stopped is None and not outcome.lost
    return 0 if outcome.is_conclusive and is_equal and is_whole else 1


def conclusion(outcome: Outcome) -> str:
    """The answer, in one or two sentences."""
    if not outcome.is_conclusive:
        why = f" It stopped early: {outcome.stopped}." if outcome.stopped is not None else ""
        return f"No conclusion: one turn does not show how much boots differ. Take --turns 3.{why}"
    better, worse = _beyond(outcome, True), _beyond(outcome, False)
    first, second = outcome.sides
    what = f"{second.name} than with {first.name}" if outcome.is_described else "patches"
    sentences = [
        f"{word} with {what}: {', '.join(changes)}."
        for word, changes in (("Better", better), ("Worse", worse))
        if changes
    ]
    if not sentences:
        sentences.append("No difference beyond the noise.")
    elif not worse:
        sentences.append("Nothing got worse beyond the noise.")
    if outcome.tokens.word == "different":
        sentences.insert(0, "The greedy tokens differ!")
    if outcome.tokens.word == "unsteady":
        sentences.append(
            f"Greedy tokens could not be compared: {first.name}'s own differ from boot to boot."
        )
    if outcome.stopped is not None:
        sentences.append(f"It stopped early: {outcome.stopped}.")
    return " ".join(sentences)


def _beyond(outcome: Outcome, is_better: bool) -> list[str]:
    """The figures that are better (or worse) beyond the noise, each with its change."""
    return [
        f"{figure.name} {amount(change).partition(' (')[0]}"
        for figure in FIGURES
        if (change := outcome.changes.get(figure.name)) and figure.is_better(change) == is_better
    ]


def amount(change: Change) -> str:
    """The change in words, with the lowest and highest turn: ``12 % less (-13 to -10)``."""
    percent, low, high = (round((x - 1) * 100) for x in (change.ratio, change.low, change.high))
    if change.word == "same" or not (percent or low or high):
        return "the same"
    ends = f"{low:+d} to {high:+d}".replace("+0", "0")
    medians = statistics.median(change.patched) - statistics.median(change.stock)
    if change.word == "within" and medians * (change.ratio - 1) <= 0:
        # The median turn says less and the median boots say more, or the other way round.
        return f"unclear ({ends} %)"
    much = f"{abs(percent)} % {'less' if change.ratio < 1 else 'more'}"
    if change.ratio > 2:
        much, ends = f"{change.ratio:.1f} times", f"{change.low:.1f} to {change.high:.1f}"
    return much if change.low == change.high else f"{much} ({ends})"


def to_json(outcome: Outcome) -> str:
    """The outcome as JSON."""
    data = asdict(outcome)
    data["sides"] = [
        {"name": one.name, "adds": one.adds, "selection": one.selection} for one in outcome.sides
    ]
    data["conclusion"] = conclusion(outcome)
    data["rule"] = noise.RULE
    data["exit_code"] = exit_code(outcome)
    for figure in FIGURES:
        if figure.name in data["changes"]:
            described = {"unit": figure.unit, "means": figure.means}
            data["changes"][figure.name] |= {**described, "less_is_better": figure.less_is_better}
    return json.dumps(data, indent=1)
