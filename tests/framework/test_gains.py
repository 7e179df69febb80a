"""The first table of the README, and its chart, say what the committed results say."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from sglang_perf_patches import sets
from sglang_perf_patches.model.patch import by_id
from tests.benchmarks import gains
from tests.maintain import ROOT, quotes

ROWS = quotes.rows(ROOT, sets.NAMES)


def test_every_figure_is_in_the_results_that_the_row_names() -> None:
    assert gains.unfounded(gains.read(ROOT), ROWS) == []


def test_a_figure_that_the_results_lack_is_named() -> None:
    first, *_ = gains.read(ROOT)
    changed = [
        gains.Gain(**{**vars(first), **change})
        for change in ({"rows": ("gone", *first.rows)}, {"patched": "9 MB"}, {"patches": ("a.b",)})
    ]
    assert gains.unfounded(changed, ROWS) == [
        f"{first.source} has no gone",
        f"{first.setup}: 9 is in none of {', '.join(first.rows)}",
        f"{first.setup}: a.b is not measured there",
    ]


@pytest.mark.parametrize("gain", gains.read(ROOT), ids=lambda gain: gain.setup)
def test_a_ratio_is_that_of_its_figures(gain: gains.Gain) -> None:
    # A row's ratio may be the median of its turns, which is close to that of the medians.
    stock, patched = (
        float(figure.split()[0].replace(",", "")) for figure in (gain.stock, gain.patched)
    )
    told = patched if "of that" in gain.patched else patched / stock
    assert told == pytest.approx(gain.ratio, rel=0.1)


def test_the_rows_name_patches_and_some_gain_nothing() -> None:
    rows = gains.read(ROOT)
    assert {id for gain in rows for id in gain.patches} <= set(by_id(sets.load()))
    assert any(gain.ratio >= 1 for gain in rows)


def test_the_first_table_is_short_and_has_rows_without_a_gain() -> None:
    first = [gain for gain in gains.read(ROOT) if not gain.further]
    assert len(first) <= 15
    assert any(gain.ratio >= 1 for gain in first)


def test_the_chart_has_a_bar_for_each_row() -> None:
    rows = gains.read(ROOT)
    svg = ElementTree.fromstring(gains.chart(rows))
    bars = svg.findall("{http://www.w3.org/2000/svg}rect")
    widths = [float(bar.attrib["width"]) for bar in bars]
    assert len(widths) == len(rows)
    assert widths == sorted(widths)
    said = [text.text or "" for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    for gain in rows:
        assert gain.setup in said
