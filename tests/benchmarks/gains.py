"""What operators gain, by set-up: the table of ``help gains``, and a page of all.

``results/gains.json`` has a row for each set-up, and names the rows of the committed results that
hold its figures (see `quotes`). `tables` puts the table into `FACE`, and writes the page.

The columns "works with" follow from what the patches of a row were tested with
(`Patch.proven_with`), by the words of ``doctor -- COMMAND`` and `list` (`cli.table`);
``tests/releases/recipes/table.md`` shows the same in commands that people run. No row states it.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sglang_perf_patches import patch_page, sets
from sglang_perf_patches.model.patch import by_id
from sglang_perf_patches.patch_page import works_with
from tests.maintain import pages, quotes

DATA = "tests/benchmarks/results/gains.json"
PAGE = "tests/benchmarks/results/gains.md"
FACE = "src/sglang_perf_patches/pages/gains.md"

GROUPS = {
    "newest": "The newest release",
    "mlx": "MLX on a CPU or for CUDA; no Mac was measured",
    "pinned": "Pinned to an older release",
}
"""Who operators are, in the order of the table of `FACE`."""

_PATCHES = by_id(sets.load())
_UP = "../" * FACE.count("/")
_GAIN = 0.97
"""A ratio above this is no gain."""


@dataclass(frozen=True, kw_only=True)
class Face:
    """What the table of `FACE` says of a set-up."""

    group: str  # one of `GROUPS`
    who: str  # follows "you run"
    set: str  # what to set, besides installing the package
    expect: str  # the figure, in the reader's words
    patch: str  # whose page says the same, and what it costs


@dataclass(frozen=True, kw_only=True)
class Gain:
    """One set-up that was measured with stock and with patches."""

    setup: str  # the model and the load, as an operator would name them
    release: str
    hardware: str
    figure: str  # what was measured; less is better
    stock: str  # stock's figure, or that of each boot or run, with its unit
    patched: str
    patches: Sequence[str]  # those that make the difference, or were to
    source: str  # a committed file
    rows: Sequence[str]  # the ids of its rows that hold the figures
    flags: str = ""  # the options or variables that make the set-up
    face: Face | None = None  # None leaves it to the page

    @property
    def ratio(self) -> float:
        """Patched : stock, of the means where there are several figures."""
        return _mean(self.patched) / _mean(self.stock)

    @property
    def is_a_gain(self) -> bool:
        """Whether the patched figure is lower than stock's by more than a few percent."""
        return self.ratio < _GAIN


def read(root: Path) -> list[Gain]:
    gains = []
    for row in json.loads((root / DATA).read_text(encoding="utf-8")):
        face = Face(**row["face"]) if "face" in row else None
        gains.append(Gain(**row | {"face": face}))
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
    """What a patch costs, as its page and `list` say, with links from `FACE`."""
    text = (root / pages.file(patch_id)).read_text(encoding="utf-8")
    page = patch_page.parse(text)
    at = [one == page.headline(release) for one in page.headlines].index(True)
    row = text.partition("| if you use | gain | cost |")[2].split("\n")[2 + at]
    return row.strip("| ").split(" | ")[2].replace("](../../../../../", f"]({_UP}")


def table(gains: Sequence[Gain], root: Path) -> str:
    """Who gains what, what it takes and costs: a table for each group, of set-ups with a face."""
    head = "| you run | you set | you get | works with | costs |\n| --- | --- | --- | --- | --- |"
    lines = []
    for group, members in grouped(gains).items():
        lines += ["", f"### {GROUPS[group]}", "", head]
        for gain in members:
            assert gain.face is not None
            figures = f"[{gain.stock} → {gain.patched}]({_UP}{gain.source}#{gain.rows[0]})"
            expect = f"{gain.face.expect}, {gain.release} on {gain.hardware}: {figures}"
            costs = cost(root, gain.face.patch, gain.release)
            cells = [gain.face.who, gain.face.set, expect, features(gain), costs]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines[1:], ""])


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
    up = "../" * PAGE.count("/")
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
        links = " ".join(f"[`{name}`]({up}{page_of[name]})" for name in gain.patches)
        source = PurePosixPath(gain.source).name
        figures = f"[{gain.stock} → {gain.patched}]({source}#{gain.rows[0]})"
        setup = f"{gain.setup}<br>`{gain.flags}`" if gain.flags else gain.setup
        cells = [setup, f"{gain.release}, {gain.hardware}", gain.figure, figures]
        lines.append(f"| {' | '.join([*cells, _ratio(gain), features(gain), links])} |")
    return "\n".join(lines) + "\n"


def _ratio(gain: Gain) -> str:
    return f"{gain.ratio:.2f}" if gain.ratio >= 0.095 else f"{gain.ratio:.3f}"


def _mean(figures: str) -> float:
    numbers = re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", figures)
    return statistics.mean(float(each.replace(",", "")) for each in numbers)
