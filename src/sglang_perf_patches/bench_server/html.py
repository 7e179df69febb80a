"""Pieces of a self-contained page: its frame, a table, and a plot of changes.

The page refers to nothing outside. Colours follow the reader's scheme. People who do not see red
and green can tell them apart, and the text repeats what a colour means.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["better", "worse", "none"]
_MINUS = "\u2212"
_MOST = 2.0
_BEYOND = "<text class=over x=100% y=50% dx=4 dominant-baseline=central>→</text>"
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Bar:
    """A line of a plot.

    Attributes:
        name: of the figure.
        change: the second side's relative to the first's: -0.3 for 30 % less.
        low: the lowest change of a turn.
        high: the highest change of a turn.
        tone: good or bad beyond the noise, or neither.
        text: the change in words.
        dots: the change of each turn, if there are few.
    """

    name: str
    change: float
    low: float
    high: float
    tone: Tone
    text: str
    dots: tuple[float, ...] = ()


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page; `parts` are HTML, `title` is text."""
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        "<meta name=color-scheme content='light dark'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def heading(level: int, text: str) -> str:
    """A heading; the first one is the page's headline."""
    return f"<h{level}>{html.escape(text)}</h{level}>\n"


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; `kind` is ``lead``, ``bad`` or nothing."""
    of_kind = f" class={kind}" if kind else ""
    return f"<p{of_kind}>{html.escape(text)}</p>\n"


def bullets(texts: Iterable[str]) -> str:
    """A list; nothing if there is nothing to list."""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>\n" if items else ""


def facts(pairs: Mapping[str, str]) -> str:
    """A list of names with a text for each."""
    items = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in pairs.items()
    )
    return f"<dl>{items}</dl>\n"


def code(text: str) -> str:
    """A command to be copied."""
    return f"<pre><code>{html.escape(text)}</code></pre>\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[tuple[str, bool]]]) -> str:
    """A table of ``(text, whether it is a number)`` cells; on a narrow page it scrolls."""
    rows = list(rows)
    numbers = [any(row[at][1] for row in rows) for at in range(len(columns))]
    heads = "".join(
        f"<th{' class=n' if is_number else ''}>{html.escape(name)}</th>"
        for name, is_number in zip(columns, numbers, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' class=n' if is_number else ''}>{html.escape(text)}</td>"
            for text, is_number in row
        )
        + "</tr>"
        for row in rows
    )
    markup = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class=scroll>{markup}</div>\n"


def plot(bars: Sequence[Bar], axis: str) -> str:
    """A plot of changes, one line each, above an axis of percentages with the label `axis`."""
    if not bars:
        return ""
    low, high, ticks = _range(bars)

    def at(value: float) -> str:
        return f"{100 * (min(max(value, low), high) - low) / (high - low):.2f}%"

    if any(_reach(bar) > high for bar in bars):
        axis += "; a bar that ends in → goes beyond the axis"
    grid = "".join(
        f"<line class={'grid' if tick else 'zero'} x1={at(tick)} x2={at(tick)} y1=0 y2=100% />"
        for tick in ticks
    )
    rows = "".join(
        f"<div class=line><div class=name>{html.escape(bar.name)}</div>"
        f"<div class=track><svg role=img aria-label='{html.escape(f'{bar.name}: {bar.text}')}'>"
        f"{grid}{_mark(bar, at)}{_BEYOND if _reach(bar) > high else ''}</svg></div>"
        f"<div class='said {bar.tone}'>{html.escape(bar.text)}</div></div>\n"
        for bar in bars
    )
    labels = "".join(
        f"<text x={at(tick)} y=14 text-anchor=middle>{_percent(tick)}</text>" for tick in ticks
    )
    return (
        f"<figure>{rows}<div class='line axis'><div class=name></div><div class=track>"
        f"<svg aria-hidden=true>{labels}</svg></div><div class=said></div></div>"
        f"<figcaption>{html.escape(axis)}</figcaption></figure>\n"
    )


def _reach(bar: Bar) -> float:
    """The largest change that a line draws."""
    return max(bar.change, bar.high, *bar.dots)


def _mark(bar: Bar, at: Callable[[float], str]) -> str:
    from_, to = sorted((0.0, bar.change))
    start, end = float(at(from_)[:-1]), float(at(to)[:-1])
    drawn = (
        f"<rect class={bar.tone} x={start:.2f}% width={end - start:.2f}% y=25% height=50% />"
        f"<line class=reach x1={at(bar.low)} x2={at(bar.high)} y1=50% y2=50% />"
    )
    for ending in (bar.low, bar.high):
        drawn += f"<line class=reach x1={at(ending)} x2={at(ending)} y1=34% y2=66% />"
    for dot in bar.dots:
        drawn += f"<circle class=dot cx={at(dot)} cy=50% r=3 />"
    return drawn


def _range(bars: Sequence[Bar]) -> tuple[float, float, list[float]]:
    """The ends of the axis, at ticks, with zero between them; and the ticks."""
    low = max(-1.0, min(0.0, *(min(bar.low, bar.change) for bar in bars)))
    high = min(_MOST, max(0.0, *(max(bar.high, bar.change) for bar in bars)))
    span = max(high - low, 0.04)
    step = next((step for step in _STEPS if span / step <= 5), _STEPS[-1])
    first, last = math.floor(low / step - 0.05), math.ceil(high / step + 0.05)
    ticks = [number * step for number in range(first, last + 1)]
    return ticks[0], ticks[-1], ticks


def _percent(change: float) -> str:
    whole = round(100 * change)
    return f"{'+' if whole > 0 else _MINUS}{abs(whole)} %" if whole else "0"


_STYLE = """
:root{color-scheme:light dark;--text:#1c2127;--dim:#59636e;--back:#fff;--card:#f5f7f9;
--edge:#d4dae1;--better:#0b62a8;--worse:#b04a00;--none:#8b949e;--mark:#1c2127}
@media (prefers-color-scheme:dark){:root{--text:#e4e8ec;--dim:#9aa5b1;--back:#14181d;
--card:#1d232a;--edge:#3a444f;--better:#62b0ee;--worse:#f0934a;--none:#7c8792;--mark:#f2f4f6}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);font:16px/1.5 system-ui,sans-serif}
main{max-width:76rem;margin:0 auto;padding:1.5rem 1.25rem 3rem}
h1{font-size:1.7rem;line-height:1.25;margin:.2rem 0 1rem}
h1:not(:first-child){margin-top:3rem}
h2{font-size:1.2rem;margin:2.2rem 0 .6rem}h3{font-size:1rem;margin:1.6rem 0 .4rem}
p,ul,figure,dl{margin:.5rem 0}ul{padding-left:1.2rem}.lead{font-size:1.1rem}
.bad{border-left:4px solid var(--worse);padding-left:.75rem;font-weight:600}
p,li,dd,h1,h2,h3{overflow-wrap:anywhere}.scroll{overflow-x:auto}
pre{background:var(--card);border:1px solid var(--edge);border-radius:6px;padding:.7rem .9rem;
white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;font-size:.95rem}
dt{color:var(--dim)}dd{margin:0}
table{border-collapse:collapse;width:100%;font-size:.9rem;margin:.6rem 0}
th,td{padding:.35rem .6rem;border-bottom:1px solid var(--edge);text-align:left;vertical-align:top}
th{color:var(--dim);font-weight:600;vertical-align:bottom}
th.n{text-align:right}
td.n{text-align:right;font-variant-numeric:tabular-nums}
figure{background:var(--card);border:1px solid var(--edge);border-radius:6px;padding:.8rem 1rem}
figcaption{color:var(--dim);font-size:.85rem;text-align:center;margin-top:.3rem}
.line{display:grid;grid-template-columns:minmax(7rem,15rem) 1fr minmax(7rem,12rem);gap:0 1.6rem;
align-items:center}
.name,.said{font-size:.9rem}.said{text-align:right}
.said.better{color:var(--better);font-weight:600}.said.worse{color:var(--worse);font-weight:600}
.said.none{color:var(--dim)}
.track{align-self:stretch;position:relative;min-height:30px}.axis .track{min-height:18px}
svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}
.over{font-weight:700;font-size:18px}
svg text{fill:var(--dim);font-size:12px}
.grid{stroke:var(--edge);stroke-width:1}.zero{stroke:var(--mark);stroke-width:1.5}
rect.better{fill:var(--better)}rect.worse{fill:var(--worse)}rect.none{fill:var(--none)}
.reach{stroke:var(--mark);stroke-width:1.5}
.dot{fill:var(--back);stroke:var(--mark);stroke-width:1.5}
@media (max-width:44rem){
main{padding:1rem .8rem 2rem}h1{font-size:1.35rem}figure{padding:.6rem 1.7rem}
.line{grid-template-columns:1fr auto;margin-bottom:.35rem}.line .track{grid-row:2;grid-column:1/-1}
.line.axis .name,.line.axis .said{display:none}
dl{grid-template-columns:1fr}dd{margin-bottom:.4rem}}
"""
