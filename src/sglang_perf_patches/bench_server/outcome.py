"""The outcome of a comparison of servers: figures, tokens, patches, and a conclusion in words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..model.selection import Selection
from . import noise, patches, redact, tokens
from .boot import Boot
from .noise import Change
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


@dataclass(frozen=True)
class Outcome:
    """The whole result.

    Attributes:
        about: what was compared: the release, the machine, the command and the load.
        sides: the two; elsewhere ``stock`` means the first, and ``patched`` the second.
        turns: how many are complete.
        stopped: why there are fewer than requested; "" if there are not.
        changes: figure → its values on both sides.
        live: the live patches of the second side.
        live_in_first: the live patches of the first side; stock has none.
        failed: patch that was refused, in conflict or failed → why.
        lost: the patches that were chosen by name and are not available.
    """

    about: Mapping[str, Any]
    sides: tuple[Side, Side]
    turns: int
    stopped: str
    changes: Mapping[str, Change]
    tokens: tokens.Comparison
    live: Sequence[patches.LiveIn]
    live_in_first: Sequence[patches.LiveIn]
    failed: Mapping[str, str]
    lost: Sequence[str]

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
            changes[name] = noise.change(*values)
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
        return (
            f"No conclusion: one turn does not show how much boots differ. Take --turns 3.{early}"
        )
    first, second = outcome.sides
    than = f"{second.name} than with {first.name}" if outcome.is_described else "patches"
    sentences = ["The greedy tokens differ!"] if outcome.tokens.word == "different" else []
    better, worse = _judged(outcome, "better"), _judged(outcome, "worse")
    if better:
        sentences.append(f"Better with {than}: {better}.")
    if worse:
        sentences.append(f"Worse with {than}: {worse}.")
    else:
        sentences.append(f"{'Nothing got worse' if better else 'No difference'} beyond the noise.")
    if outcome.tokens.word == "unsteady":
        sentences.append(
            f"Greedy tokens could not be compared: {first.name}'s own differ from boot to boot."
        )
    return " ".join(sentences) + early


def _judged(outcome: Outcome, word: str) -> str:
    """The figures of this judgement, each with its change."""
    return ", ".join(
        f"{name} {amount(change)}"
        for name, change in outcome.changes.items()
        if judgement(name, change) == word
    )


def amount(change: Change) -> str:
    """The change of the medians in words: ``12 % less``."""
    percent = round(abs(change.ratio - 1) * 100)
    if change.ratio > 2:
        return f"{change.ratio:.1f} times"
    return f"{percent} % {'less' if change.ratio < 1 else 'more'}" if percent else "the same"


def to_json(outcome: Outcome) -> str:
    """The outcome as JSON."""
    data = asdict(outcome)
    data |= data.pop("about")
    data["sides"] = [
        {"name": one.name, "adds": one.adds, "selection": one.selection} for one in outcome.sides
    ]
    data["conclusion"] = conclusion(outcome)
    data["rule"] = noise.RULE
    data["exit_code"] = exit_code(outcome)
    for name, change in outcome.changes.items():
        data["changes"][name] |= {"unit": FIGURES[name], "is": judgement(name, change)}
    return json.dumps(data, indent=1)
