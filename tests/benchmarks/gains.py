"""What operators gain, by set-up: the first table of the README with its chart, and a second one.

``results/gains.json`` has a row for each set-up, and names the rows of the committed results that
hold its figures (see `quotes`). `tables` puts the tables into the README and writes the chart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from tests.maintain import quotes

DATA = "tests/benchmarks/results/gains.json"
CHART = "examples/gains.svg"

_WIDTH, _LABEL, _ROW, _TOP, _BOTTOM = 900, 430, 40, 56, 34
_FULL = 370
"""Pixels from 0 to stock's own figure."""
_GAIN, _LOSS = 0.97, 1.03
"""A ratio between these is no difference."""
_MOST = 1.15
"""The longest bar, as a multiple of stock."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """One set-up that was measured with stock and with patches.

    Attributes:
        setup: the model and the load, as an operator would name them.
        flags: the options or variables that make the set-up; empty where there are none.
        release: the sglang release.
        hardware: what it ran on.
        figure: what was measured; less is better.
        stock: stock's figure, with its unit.
        patched: the patched one.
        ratio: patched : stock.
        patches: the patches that make the difference, or were to.
        source: the committed file that has the figures.
        rows: the ids of its rows that hold them.
        further: whether the row is left to the second table, to keep the first one short.
    """

    setup: str
    release: str
    hardware: str
    figure: str
    stock: str
    patched: str
    ratio: float
    patches: tuple[str, ...]
    source: str
    rows: tuple[str, ...]
    flags: str = ""
    further: bool = False

    @property
    def is_a_gain(self) -> bool:
        """Whether the patched figure is lower than stock's by more than a few percent."""
        return self.ratio < _GAIN


def read(root: Path) -> list[Gain]:
    """The rows of a checkout, the largest gain first."""
    rows = json.loads((root / DATA).read_text(encoding="utf-8"))
    gains = [
        Gain(**{**row, "patches": tuple(row["patches"]), "rows": tuple(row["rows"])})
        for row in rows
    ]
    return sorted(gains, key=lambda gain: gain.ratio)


def unfounded(gains: Sequence[Gain], known: Mapping[tuple[str, str], quotes.Row]) -> list[str]:
    """Rows that their source lacks, figures that the rows lack, and patches they are not of."""
    wrong = []
    for gain in gains:
        found = [known[gain.source, one] for one in gain.rows if (gain.source, one) in known]
        wrong += [
            f"{gain.source} has no {id}" for id in gain.rows if (gain.source, id) not in known
        ]
        there = [number for row in found for number in quotes.numbers(row.text)]
        wrong += [
            f"{gain.setup}: {number} is in none of {', '.join(gain.rows)}"
            for number in quotes.numbers(f"{gain.stock} {gain.patched}")
            if not quotes.is_in(number, there)
        ]
        wrong += [
            f"{gain.setup}: {patch_id} is not measured there"
            for patch_id in gain.patches
            if not any(patch_id in row.section.on for row in found)
        ]
    return wrong


def table(gains: Sequence[Gain], page_of: Mapping[str, str]) -> str:
    """A row for each set-up, with a link to its results and to each patch's page."""
    lines = [
        "| you run | on | measured | stock → patched | ratio | patch |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for gain in gains:
        links = " ".join(f"[`{name}`]({page_of[name]})" for name in gain.patches)
        figures = f"[{gain.stock} → {gain.patched}]({gain.source}#{gain.rows[0]})"
        setup = f"{gain.setup}<br>`{gain.flags}`" if gain.flags else gain.setup
        cells = [setup, f"{gain.release}, {gain.hardware}", gain.figure, figures]
        lines.append(f"| {' | '.join([*cells, _ratio(gain), links])} |")
    return "\n".join(lines) + "\n"


def chart(gains: Sequence[Gain]) -> str:
    """The same as bars, in SVG: stock's figure is one, and a shorter bar is better.

    The colour-blind can tell the colours apart, and the colours follow the reader's light or dark
    scheme.
    """
    bottom = _TOP + _ROW * len(gains)
    height = bottom + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img" aria-label="Patched against stock">',
        "<style>",
        "text{font:13px system-ui,sans-serif;fill:#1f2328}.small{font-size:11px;fill:#59636e}",
        ".title{font-size:15px;font-weight:600}.bar{fill:#0072b2}.same{fill:#8c959f}.loss{fill:#cc79a7}",
        ".stock{stroke:#d55e00;stroke-width:2;stroke-dasharray:4 3}.axis{stroke:#d1d9e0}",
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}",
        ".bar{fill:#56b4e9}.same{fill:#6e7781}.stock{stroke:#e69f00}.axis{stroke:#3d444d}}",
        "</style>",
        '<text class="title" x="0" y="18">Patched against stock: shorter is better</text>',
    ]
    for part in (0.0, 0.25, 0.5, 0.75):
        x = _LABEL + _FULL * part
        parts.append(_line(x, bottom, "axis"))
        parts.append(_text(x, bottom + 18, f"{part:g}", "small", "middle"))
    for index, gain in enumerate(gains):
        y = _TOP + _ROW * index
        length = max(2.0, _FULL * min(gain.ratio, _MOST))
        kind = "bar" if gain.is_a_gain else "same" if gain.ratio < _LOSS else "loss"
        # A label beside a bar that nearly reaches stock's line goes behind the line.
        end = length if gain.ratio < 0.88 else max(length, _FULL)
        parts.append(_text(_LABEL - 10, y + 11, gain.setup, "", "end"))
        where = f"{gain.figure}; {gain.release}, {gain.hardware}"
        parts.append(_text(_LABEL - 10, y + 25, where, "small", "end"))
        parts.append(
            f'<rect class="{kind}" x="{_LABEL}" y="{y + 2}" width="{length:.1f}" height="20"/>'
        )
        parts.append(_text(_LABEL + end + 6, y + 17, _ratio(gain), "", "start"))
    parts.append(_line(_LABEL + _FULL, bottom, "stock"))
    parts.append(_text(_LABEL + _FULL, bottom + 18, "1 (stock)", "small", "middle"))
    return "\n".join([*parts, "</svg>", ""])


def _ratio(gain: Gain) -> str:
    return f"{gain.ratio:.2f}" if gain.ratio >= 0.095 else f"{gain.ratio:.3f}"


def _line(x: float, bottom: int, kind: str) -> str:
    return f'<line class="{kind}" x1="{x:.0f}" y1="{_TOP - 8}" x2="{x:.0f}" y2="{bottom}"/>'


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'
