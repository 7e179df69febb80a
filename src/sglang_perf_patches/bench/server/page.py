"""An outcome as one page that can be sent on."""

from __future__ import annotations

from .. import page
from . import shown
from .noise import Change
from .outcome import FIGURES, Figure, Outcome, amount, conclusion


def to_html(outcome: Outcome, *others: Outcome) -> str:
    """The conclusion, a plot of the changes, the figures, and how they were taken.

    Args:
        outcome: the comparison.
        others: those of further sides with the same first side.
    """
    parts = [page.heading(1, conclusion(outcome)), page.paragraph(_about(outcome))]
    parts += _compared(outcome)
    for other in others:
        parts += [page.heading(1, conclusion(other)), *_compared(other)]
    parts += [page.heading(2, "How this was measured"), page.code(outcome.repeat)]
    parts.append(
        page.facts(
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
        parts.append(page.bullets(shown.notes(outcome)))
        parts += [page.heading(2, "Each boot"), *map(_boots, (outcome, *others))]
    return page.document("sglang-perf-patches bench server", parts)


def _about(outcome: Outcome) -> str:
    """The model, the release and the machine, for the first screen."""
    machine = outcome.machine.get("gpu") or outcome.machine.get("processor", "")
    named = [outcome.model or "a model", f"sglang {outcome.sglang}", machine]
    return ", ".join(filter(None, [*named, outcome.machine.get("measured", "")]))


def _compared(outcome: Outcome) -> list[str]:
    """Two sides: what they are, their tokens, figures and patches."""
    parts = [page.facts(dict(shown.described(outcome)))] if outcome.is_described else []
    if outcome.tokens is not None:
        kind = "lead" if outcome.tokens.word == "equal" else "bad"
        parts.append(page.paragraph(f"Greedy tokens: {outcome.tokens.sentence}.", kind))
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
            page.heading(2, f"{shown.titled(second)} against {first.name}"),
            page.plot(bars, axis),
            page.table(head, cells),
            page.facts(
                {figure.name: figure.means for figure in FIGURES if figure.name in outcome.changes}
            ),
        ]
    live = _live(outcome)
    return [*parts, page.heading(2, "What was on"), page.bullets(live)] if live else parts


def _bar(figure: Figure, change: Change) -> page.Bar:
    tone: page.Tone = "none"
    if change.word in ("less", "more"):
        tone = "better" if (change.word == "less") == figure.less_is_better else "worse"
    each = [theirs / ours - 1 for ours, theirs in zip(change.stock, change.patched, strict=True)]
    ends = (change.ratio - 1, change.low - 1, change.high - 1)
    return page.Bar(figure.name, *ends, tone, amount(change), tuple(each))


def _live(outcome: Outcome) -> list[str]:
    """The facts without the tokens', which are shown above."""
    facts = list(shown.facts(outcome))
    return facts[1:] if outcome.tokens is not None else facts


def _boots(outcome: Outcome) -> str:
    figures = [figure for figure in FIGURES if figure.name in outcome.changes]
    columns = ["turn", "side", *(f"{figure.name}, {figure.unit}" for figure in figures)]
    rows = [
        [
            (str(turn), False),
            (side.name, False),
            *((page.number(boot[key][figure.name]), True) for figure in figures),
        ]
        for turn, boot in enumerate(outcome.boots, 1)
        for key, side in zip(("stock", "patched"), outcome.sides, strict=True)
    ]
    return page.table(columns, rows)
