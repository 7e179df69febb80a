"""An outcome as one self-contained HTML page, safe to share."""

from __future__ import annotations

import os
from pathlib import Path

from ..model.errors import OperatorError
from . import html, shown
from .noise import Change
from .outcome import FIGURES, Figure, Outcome, amount, conclusion


class PageError(OperatorError, RuntimeError):
    """The page can't be written to the given place."""


def to_html(outcome: Outcome, *others: Outcome) -> str:
    """The page: conclusion, plot of the changes, figures, and how they were measured.

    Args:
        outcome: the comparison.
        others: the comparisons of further sides with the same first side.
    """
    parts = [html.heading(1, conclusion(outcome)), html.paragraph(_about(outcome))]
    parts += _compared(outcome)
    for other in others:
        parts += [html.heading(1, conclusion(other)), *_compared(other)]
    parts += [html.heading(2, "How this was measured"), html.code(outcome.repeat)]
    parts.append(
        html.facts(
            {
                "sglang": outcome.sglang,
                "model": outcome.model or "unknown",
                "SGLANG_PERF_PATCHES": outcome.selection,
                "bench_serving": outcome.load,
                **outcome.machine,
            }
        )
    )
    if outcome.changes:
        parts.append(html.bullets(shown.notes(outcome)))
        parts += [html.heading(2, "Each boot"), *map(_boots, (outcome, *others))]
    return html.document("sglang-perf-patches bench server", parts)


def _about(outcome: Outcome) -> str:
    """The model, the release and the machine, for the first screen."""
    machine = outcome.machine.get("gpu") or outcome.machine.get("processor", "")
    named = [outcome.model or "a model", f"sglang {outcome.sglang}", machine]
    return ", ".join(filter(None, [*named, outcome.machine.get("measured", "")]))


def _compared(outcome: Outcome) -> list[str]:
    """The section on two sides: what they are, their tokens, figures and patches."""
    parts = [html.facts(dict(shown.described(outcome)))] if outcome.is_described else []
    if outcome.tokens is not None:
        kind = "lead" if outcome.tokens.word == "equal" else "bad"
        parts.append(html.paragraph(f"Greedy tokens: {outcome.tokens.sentence}.", kind))
    if outcome.changes:
        bars = [
            _bar(figure, outcome.changes[figure.name])
            for figure in FIGURES
            if figure.name in outcome.changes
        ]
        first, second = outcome.sides
        axis = f"{second.name} against {first.name}; a dot is a turn, the bar their median"
        head, *rows = shown.rows(outcome)
        cells = [[(cell, 2 <= at <= 3) for at, cell in enumerate(row)] for row in rows]
        parts += [
            html.heading(2, f"{shown.titled(second)} against {first.name}"),
            html.plot(bars, axis),
            html.table(head, cells),
            html.facts(
                {figure.name: figure.means for figure in FIGURES if figure.name in outcome.changes}
            ),
        ]
    live = _live(outcome)
    return [*parts, html.heading(2, "What was on"), html.bullets(live)] if live else parts


def _bar(figure: Figure, change: Change) -> html.Bar:
    tone: html.Tone = "none"
    if change.word in ("less", "more"):
        tone = "better" if (change.word == "less") == figure.less_is_better else "worse"
    each = [theirs / ours - 1 for ours, theirs in zip(change.stock, change.patched, strict=True)]
    ends = (change.ratio - 1, change.low - 1, change.high - 1)
    return html.Bar(figure.name, *ends, tone, amount(change), tuple(each))


def _live(outcome: Outcome) -> list[str]:
    """The facts without those on tokens, which the page shows elsewhere."""
    facts = list(shown.facts(outcome))
    return facts[1:] if outcome.tokens is not None else facts


def _boots(outcome: Outcome) -> str:
    figures = [figure for figure in FIGURES if figure.name in outcome.changes]
    columns = ["turn", "side", *(f"{figure.name}, {figure.unit}" for figure in figures)]
    rows = [
        [
            (str(turn), False),
            (side.name, False),
            *((shown.number(boot[key][figure.name]), True) for figure in figures),
        ]
        for turn, boot in enumerate(outcome.boots, 1)
        for key, side in zip(("stock", "patched"), outcome.sides, strict=True)
    ]
    return html.table(columns, rows)


def require_writable(path: Path) -> None:
    """Check, before anything is measured, that the page can be written.

    Raises:
        PageError: its folder does not exist or can't be written.
    """
    place = path if path.exists() else path.parent
    if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
        raise PageError(f"{path} can't be written")


def write(path: Path, text: str) -> None:
    """Write a page.

    Raises:
        PageError: it can't be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PageError(f"{path} can't be written: {error.strerror}") from error
