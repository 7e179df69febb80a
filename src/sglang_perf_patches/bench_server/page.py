"""An outcome as one self-contained HTML page, safe to share.

The page refers to nothing outside. Its colours follow the reader's scheme, and the text repeats
what a colour means.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from . import shown
from .outcome import FIGURES, Outcome, conclusion


def to_html(outcome: Outcome, *others: Outcome) -> str:
    """The page: conclusion, figures with a chart of the changes, and how they were measured.

    `others` compare further sides with the same first side.
    """
    parts = [_element("h1", conclusion(outcome)), _element("p", _about(outcome))]
    parts += _compared(outcome)
    for other in others:
        parts += [_element("h1", conclusion(other)), *_compared(other)]
    measured = {
        "sglang": outcome.sglang,
        "model": outcome.model or "unknown",
        "SGLANG_PERF_PATCHES": outcome.sides[1].selection,
        "bench_serving": outcome.load,
        **outcome.machine,
    }
    parts += [_element("h2", "How this was measured"), _element("pre", outcome.repeat)]
    parts.append(_facts(measured.items()))
    parts += [_element("p", note) for note in shown.notes(outcome)]
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>sglang-perf-patches bench server</title><style>{_STYLE}</style></head>\n"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _about(outcome: Outcome) -> str:
    """The model, the release and the machine, for the first screen."""
    machine = outcome.machine.get("gpu") or outcome.machine.get("processor", "")
    named = [outcome.model or "a model", f"sglang {outcome.sglang}", machine]
    return ", ".join(filter(None, [*named, outcome.machine.get("measured", "")]))


def _compared(outcome: Outcome) -> list[str]:
    """The section on two sides: what they are, their tokens, figures and patches."""
    parts = [_facts(shown.described(outcome))] if outcome.is_described else []
    facts = "".join(_element("li", fact) for fact in shown.facts(outcome))
    parts.append(f"<ul>{facts}</ul>\n")
    first, second = outcome.sides
    parts.append(_element("h2", f"{second.name} against {first.name}"))
    return [*parts, _table(outcome)]


def _table(outcome: Outcome) -> str:
    """The figures, each with a bar from the middle: to the right if the second side has more."""
    head, *rows = shown.rows(outcome)
    changes = {name: change.ratio - 1 for name, change in outcome.changes.items()}
    widest = max(map(abs, changes.values())) or 1.0
    means = {figure.name: figure.means for figure in FIGURES}
    lines = ["".join(_element("th", name) for name in [*head, "change"])]
    for row in rows:
        share = 50 * changes[row[0]] / widest
        tone = row[-1].removeprefix("yes, ")
        bar = f"left:{min(50, 50 + share):.1f}%;width:{abs(share):.1f}%"
        cells = "".join(_element("td", cell) for cell in [f"{row[0]}: {means[row[0]]}", *row[1:]])
        lines.append(f"{cells}<td class=chart><i class={tone} style='{bar}'></i></td>")
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>\n"


def _facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of names with a text for each."""
    items = "".join(_element("dt", name) + _element("dd", text) for name, text in pairs)
    return f"<dl>{items}</dl>\n"


def _element(tag: str, text: str) -> str:
    return f"<{tag}>{escape(text)}</{tag}>"


_STYLE = """
:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}
body{max-width:76rem;margin:0 auto;padding:1rem}
h1{font-size:1.5rem}h2{font-size:1.2rem}
pre{white-space:pre-wrap}h1,p,pre,dd,li{overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}dd{margin:0}
table{display:block;overflow-x:auto;border-collapse:collapse;font-size:.9rem}
th,td{padding:.35rem .6rem;border-bottom:1px solid #8885;text-align:left}
.chart{position:relative;min-width:10rem;background:linear-gradient(#888,#888) center/1px no-repeat}
i{position:absolute;top:25%;height:50%;background:#888}
i.better{background:#3a8fd8}i.worse{background:#d9661f}
"""
