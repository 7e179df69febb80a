"""An outcome as one page that can be sent on."""

from __future__ import annotations

from .. import page
from . import shown
from .noise import Change
from .outcome import FIGURES, Figure, Outcome, amount, conclusion


def to_html(found: Outcome, *more: Outcome) -> str:
    """The conclusion, a plot of the changes, the figures, and how they were taken.

    Args:
        found: the comparison.
        more: those of further sides with the same first side.
    """
    parts = [page.heading(1, conclusion(found)), page.paragraph(_about(found))]
    parts += _compared(found)
    for other in more:
        parts += [page.heading(1, conclusion(other)), *_compared(other)]
    parts += [page.heading(2, "How this was measured"), page.code(found.repeat)]
    parts.append(
        page.facts(
            {
                "sglang": found.sglang,
                "model": found.model or "unknown",
                "SGLANG_PERF_PATCHES": found.selection,
                "bench_serving": found.load,
                **found.machine,
            }
        )
    )
    if found.changes:
        parts.append(page.bullets(shown.notes(found)))
        parts += [page.heading(2, "Each boot"), *map(_boots, (found, *more))]
    return page.document("sglang-perf-patches bench server", parts)


def _about(found: Outcome) -> str:
    """The model, the release and the machine, for the first screen."""
    release = found.sglang.partition(" at ")[0]
    machine = found.machine.get("gpu") or found.machine.get("processor", "")
    named = [found.model or "a model", f"sglang {release}", machine]
    return ", ".join(filter(None, [*named, found.machine.get("measured", "")]))


def _compared(found: Outcome) -> list[str]:
    """Two sides: what they are, their tokens, figures and patches."""
    parts = [page.facts(dict(shown.described(found)))] if found.is_described else []
    if found.tokens is not None:
        kind = "lead" if found.tokens.word == "equal" else "bad"
        parts.append(page.paragraph(f"Greedy tokens: {found.tokens.sentence}.", kind))
    if found.changes:
        bars = [
            _bar(figure, found.changes[figure.name])
            for figure in FIGURES
            if figure.name in found.changes
        ]
        first, second = found.sides
        axis = f"{second.name} against {first.name}; a dot is a turn, the bar their median"
        head, *rows = shown.rows(found)
        cells = [[(cell, 2 <= at <= 3) for at, cell in enumerate(row)] for row in rows]
        parts += [
            page.heading(2, f"{shown.titled(second)} against {first.name}"),
            page.plot(bars, axis),
            page.table(head, cells),
            page.facts(
                {figure.name: figure.means for figure in FIGURES if figure.name in found.changes}
            ),
        ]
    live = _live(found)
    return [*parts, page.heading(2, "What was on"), page.bullets(live)] if live else parts


def _bar(figure: Figure, change: Change) -> page.Bar:
    tone: page.Tone = "none"
    if change.word in ("less", "more"):
        tone = "better" if (change.word == "less") == figure.less_is_better else "worse"
    each = [theirs / ours - 1 for ours, theirs in zip(change.stock, change.patched, strict=True)]
    ends = (change.ratio - 1, change.low - 1, change.high - 1)
    return page.Bar(figure.name, *ends, tone, amount(change), tuple(each))


def _live(found: Outcome) -> list[str]:
    """The facts without the tokens', which are shown above."""
    facts = list(shown.facts(found))
    return facts[1:] if found.tokens is not None else facts


def _boots(found: Outcome) -> str:
    figures = [figure for figure in FIGURES if figure.name in found.changes]
    columns = ["turn", "side", *(f"{figure.name}, {figure.unit}" for figure in figures)]
    rows = [
        [
            (str(turn), False),
            (side.name, False),
            *((page.number(boot[key][figure.name]), True) for figure in figures),
        ]
        for turn, boot in enumerate(found.boots, 1)
        for key, side in zip(("stock", "patched"), found.sides, strict=True)
    ]
    return page.table(columns, rows)
