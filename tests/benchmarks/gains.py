"""What operators gain, by set-up: the first table of the README with its chart, and a page of all.

``results/gains.json`` has a row for each set-up, and names the rows of the committed results that
hold its figures (see `quotes`). `tables` puts the table into the README, and writes the chart and
the page.

The columns "works with" follow from what the patches of a row were tested with
(`Patch.proven_with`), by the words of ``doctor -- COMMAND`` and `list` (`cli.table`);
``tests/releases/recipes/table.md`` shows the same in commands that people run. No row states it.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from xml.sax.saxutils import escape

from sglang_perf_patches import patch_page, sets
from sglang_perf_patches.model.patch import by_id
from sglang_perf_patches.patch_page import works_with
from tests.maintain import pages, quotes

DATA = "tests/benchmarks/results/gains.json"
PAGE = "tests/benchmarks/results/gains.md"
CHART = "examples/gains.svg"

GROUPS = {
    "newest": "The newest release",
    "mlx": "MLX; no Mac was measured",
    "pinned": "Pinned to an older release",
}
"""Who operators are, in the order of the README's table."""

_PATCHES = by_id(sets.load())
_CHARTED = ("newest", "mlx")
_LEAST = 0.1
"""The chart leaves out a smaller ratio, whose bar would dwarf the others; the table has it."""
_WIDTH, _LEFT, _ROW, _TOP, _GROUP = 470, 10, 62, 30, 30
_SHORT = 50
_GAIN = 0.97
"""A ratio above this is no gain."""
_BETTER = {"time": "less time", "memory": "less memory"}


@dataclass(frozen=True, kw_only=True)
class Face:
    """What the README's table says of a set-up.

    Attributes:
        group: one of `GROUPS`.
        short: what the chart calls it, of at most `_SHORT` characters.
        who: follows "you run".
        set: what to set, beside installing the package.
        expect: the figure, in the reader's words.
        patch: whose page says the same, and what it costs.
    """

    group: str
    short: str
    who: str
    set: str
    expect: str
    patch: str


@dataclass(frozen=True, kw_only=True)
class Gain:
    """One set-up that was measured with stock and with patches.

    Attributes:
        setup: the model and the load, as an operator would name them.
        flags: the options or variables that make the set-up; empty where there are none.
        release: the sglang release.
        hardware: what it ran on.
        figure: what was measured; less is better.
        stock: stock's figure, or that of each boot or run, with its unit.
        patched: the patched one.
        patches: the patches that make the difference, or were to.
        source: the committed file that has the figures.
        rows: the ids of its rows that hold them.
        face: what the README's table says of it; None leaves it to the page.
    """

    setup: str
    release: str
    hardware: str
    figure: str
    stock: str
    patched: str
    patches: tuple[str, ...]
    source: str
    rows: tuple[str, ...]
    flags: str = ""
    face: Face | None = None

    @property
    def ratio(self) -> float:
        """Patched : stock, of the means where there are several figures."""
        return _mean(self.patched) / _mean(self.stock)

    @property
    def is_a_gain(self) -> bool:
        """Whether the patched figure is lower than stock's by more than a few percent."""
        return self.ratio < _GAIN

    @property
    def kind(self) -> str:
        """``memory`` or ``time``, by the unit."""
        return "memory" if self.stock.split()[-1].endswith("B") else "time"


def read(root: Path) -> list[Gain]:
    """The rows of a checkout, the largest gain first."""
    rows = json.loads((root / DATA).read_text(encoding="utf-8"))
    gains = [
        Gain(
            **{
                **row,
                "patches": tuple(row["patches"]),
                "rows": tuple(row["rows"]),
                "face": Face(**row["face"]) if "face" in row else None,
            }
        )
        for row in rows
    ]
    return sorted(gains, key=lambda gain: gain.ratio)


def unfounded(gains: Sequence[Gain], known: Mapping[tuple[str, str], quotes.Row]) -> list[str]:
    """Rows that their source lacks, figures that the rows lack, and patches they are not of."""
    wrong = []
    for gain in gains:
        rows = [known[gain.source, one] for one in gain.rows if (gain.source, one) in known]
        wrong += [
            f"{gain.source} has no {id}" for id in gain.rows if (gain.source, id) not in known
        ]
        there = [number for row in rows for number in quotes.numbers(row.text)]
        wrong += [
            f"{gain.setup}: {number} is in none of {', '.join(gain.rows)}"
            for number in quotes.numbers(f"{gain.stock} {gain.patched}")
            if not quotes.is_in(number, there)
        ]
        wrong += [
            f"{gain.setup}: {patch_id} is not measured there"
            for patch_id in gain.patches
            if not any(patch_id in row.section.on for row in rows)
        ]
    return wrong


def cost(root: Path, patch_id: str, release: str) -> str:
    """What a patch costs, as its page and `list` say, with links from the top of a checkout."""
    text = (root / pages.file(patch_id)).read_text(encoding="utf-8")
    page = patch_page.parse(text)
    at = [one == page.headline(release) for one in page.headlines].index(True)
    row = text.partition("| if you use | gain | cost |")[2].split("\n")[2 + at]
    return row.strip("| ").split(" | ")[2].replace("](../../../../../", "](")


def table(gains: Sequence[Gain], root: Path) -> str:
    """Who gains what, what it takes and costs: a row for each set-up with a face, by group."""
    lines = [
        "| you run | you set | you get | works with | costs |",
        "| --- | --- | --- | --- | --- |",
    ]
    for group, members in grouped(gains).items():
        lines.append(f"| **{GROUPS[group]}** | | | | |")
        for gain in members:
            assert gain.face is not None
            figures = f"[{gain.stock} → {gain.patched}]({gain.source}#{gain.rows[0]})"
            expect = f"{gain.face.expect}, {gain.release} on {gain.hardware}: {figures}"
            costs = cost(root, gain.face.patch, gain.release)
            cells = [gain.face.who, gain.face.set, expect, features(gain), costs]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def features(gain: Gain) -> str:
    """What all patches of a row were tested with; MLX has one process, and none of the others."""
    words = works_with(_PATCHES, *gain.patches)
    is_mlx = any("mlx" in _PATCHES[each].only_with for each in gain.patches)
    return "one process" if is_mlx else ", ".join(words)


def grouped(gains: Sequence[Gain]) -> dict[str, list[Gain]]:
    """The set-ups that have a face, by group, in the order of both."""
    return {
        group: [gain for gain in gains if gain.face is not None and gain.face.group == group]
        for group in GROUPS
    }


def page(gains: Sequence[Gain], page_of: Mapping[str, str]) -> str:
    """All set-ups, also those without a gain, with links to results and to each patch's page."""
    folder = PurePosixPath(PAGE).parent

    def below(file: str) -> str:
        return "../" * len(folder.parts) + file

    lines = [
        "# What operators gain, by set-up",
        "",
        "`python3 -m tests.maintain.tables` writes this page from `gains.json`. Compare within a",
        "row only: the rows are from different machines. Several figures are those of each boot or",
        "run, and the ratio is that of their means. The figures link to their results.",
        "",
        "| you run | on | measured | stock → patched | ratio | works with | patch |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for gain in gains:
        links = " ".join(f"[`{name}`]({below(page_of[name])})" for name in gain.patches)
        source = PurePosixPath(gain.source).name
        figures = f"[{gain.stock} → {gain.patched}]({source}#{gain.rows[0]})"
        setup = f"{gain.setup}<br>`{gain.flags}`" if gain.flags else gain.setup
        cells = [setup, f"{gain.release}, {gain.hardware}", gain.figure, figures]
        lines.append(f"| {' | '.join([*cells, _ratio(gain), features(gain), links])} |")
    return "\n".join(lines) + "\n"


def charted(gains: Sequence[Gain]) -> dict[str, list[Gain]]:
    """What the chart shows, by group."""
    groups = grouped(gains)
    return {name: [each for each in groups[name] if each.ratio >= _LEAST] for name in _CHARTED}


def chart(gains: Sequence[Gain]) -> str:
    """The first groups of the README's table as bars, in SVG: how many times better.

    It is readable 360 pixels wide. The colour-blind can tell the colours apart, and the colours
    follow the reader's light or dark scheme.
    """
    groups = charted(gains)
    shown = [gain for members in groups.values() for gain in members]
    most = math.ceil(max(1 / gain.ratio for gain in shown))
    bottom = _TOP + _GROUP * len(groups) + _ROW * len(shown)
    height = bottom + 58

    def x(times: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 16) * times / most

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img" aria-label="Times better than stock">',
        "<style>",
        "text{font:13px system-ui,sans-serif;fill:#1f2328}.small{font-size:12px;fill:#59636e}",
        ".title{font-size:15px;font-weight:600}.group{font-weight:600}",
        ".in{fill:#fff}.time{fill:#0072b2}.memory{fill:#d55e00}.axis{stroke:#d1d9e0}",
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}",
        ".in{fill:#0d1117}.time{fill:#56b4e9}.memory{fill:#e69f00}.axis{stroke:#3d444d}}",
        "</style>",
        _text(0, 16, "Times better than stock sglang", "title", "start"),
    ]
    for tick in range(most + 1):
        parts.append(
            f'<line class="axis" x1="{x(tick):.0f}" y1="{_TOP}" x2="{x(tick):.0f}" y2="{bottom}"/>'
        )
        parts.append(_text(x(tick), bottom + 16, f"{tick}", "small", "middle"))
    y = _TOP
    for group, members in groups.items():
        parts.append(_text(0, y + 20, GROUPS[group], "group", "start"))
        y += _GROUP
        for gain in members:
            assert gain.face is not None
            end = x(1 / gain.ratio)
            told = f"{gain.face.short} ({gain.hardware})"
            parts.append(_text(_LEFT, y + 12, told, "", "start"))
            parts.append(
                f'<rect class="{gain.kind}" x="{_LEFT}" y="{y + 18}" '
                f'width="{max(2.0, end - _LEFT):.1f}" height="15"/>'
            )
            parts.append(_text(end - 6, y + 30, _times(gain), "small in", "end"))
            figures = f"{gain.stock} → {gain.patched}"
            parts.append(_text(_LEFT, y + 46, figures, "small", "start"))
            y += _ROW
    parts.append(_text(_LEFT, bottom + 36, "times better; 1 is stock", "small", "start"))
    left = _LEFT
    for kind, words in _BETTER.items():
        if kind not in {gain.kind for gain in shown}:
            continue
        parts.append(f'<rect class="{kind}" x="{left}" y="{bottom + 42}" width="12" height="12"/>')
        parts.append(_text(left + 18, bottom + 53, words, "small", "start"))
        left += 110
    return "\n".join([*parts, "</svg>", ""])


def _times(gain: Gain) -> str:
    times = 1 / gain.ratio
    return f"{times:.0f} times" if times >= 10 else f"{times:.1f} times"


def _ratio(gain: Gain) -> str:
    return f"{gain.ratio:.2f}" if gain.ratio >= 0.095 else f"{gain.ratio:.3f}"


def _mean(figures: str) -> float:
    numbers = re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", figures)
    return statistics.mean(float(each.replace(",", "")) for each in numbers)


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'
