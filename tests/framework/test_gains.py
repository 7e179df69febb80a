"""The first table of the README, and its chart, say what the committed results say."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from sglang_perf_patches import patch_page, sets
from sglang_perf_patches.cli import table
from sglang_perf_patches.compat.verdict import Verdict
from sglang_perf_patches.model.patch import by_id
from sglang_perf_patches.patch_page import ONE, WORDS, plain
from tests.benchmarks import gains
from tests.maintain import ROOT, pages, quotes

ROWS = quotes.rows(ROOT, sets.NAMES)
_SVG = "{http://www.w3.org/2000/svg}"


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


def test_a_ratio_is_that_of_the_means() -> None:
    first, *_ = gains.read(ROOT)
    gain = gains.Gain(**{**vars(first), "stock": "1,000, 3,000 MB", "patched": "500, 1.0 MB"})
    assert gain.ratio == pytest.approx(501 / 4000)
    assert (gain.kind, gain.is_a_gain) == ("memory", True)


def test_the_rows_name_patches_and_some_gain_nothing() -> None:
    rows = gains.read(ROOT)
    assert {id for gain in rows for id in gain.patches} <= set(by_id(sets.load()))
    assert any(gain.ratio >= 1 for gain in rows)


def test_the_readme_has_few_rows_that_all_gain_in_three_groups() -> None:
    groups = gains.grouped(gains.read(ROOT))
    assert list(groups) == ["newest", "mlx", "pinned"]
    shown = [gain for members in groups.values() for gain in members]
    assert all(groups.values())
    assert len(shown) <= 9
    assert all(gain.is_a_gain for gain in shown)
    table = gains.table(gains.read(ROOT), ROOT).splitlines()
    assert len(table) == 2 + len(groups) + len(shown)
    for gain in shown:
        assert sum(f"{gain.source}#{gain.rows[0]})" in line for line in table) == 1


def test_the_page_has_every_row_and_its_links_lead_somewhere() -> None:
    rows = gains.read(ROOT)
    page_of = {id: pages.file(id) for gain in rows for id in gain.patches}
    page = gains.page(rows, page_of)
    assert page.count("\n| ") == 2 + len(rows)
    folder = (ROOT / gains.PAGE).parent
    for target in re.findall(r"\]\(([^)#]*)", page):
        assert (folder / target).is_file(), target


def test_the_chart_has_two_groups_and_no_bar_that_dwarfs_the_others() -> None:
    rows = gains.read(ROOT)
    assert list(gains.charted(rows)) == ["newest", "mlx"]
    shown = [gain for members in gains.charted(rows).values() for gain in members]
    assert len(shown) >= 4
    svg = ElementTree.fromstring(gains.chart(rows))
    bars = [each for each in svg.findall(f"{_SVG}rect") if each.attrib["height"] == "15"]
    widths = [float(bar.attrib["width"]) for bar in bars]
    assert len(widths) == len(shown)
    order = sorted(range(len(shown)), key=lambda place: shown[place].ratio)
    assert sorted(widths, reverse=True) == [widths[place] for place in order]
    assert max(widths) < 5 * min(widths)
    texts = [text.text or "" for text in svg.iter(f"{_SVG}text")]
    for gain in shown:
        assert gain.face is not None
        assert f"{gain.face.short} ({gain.hardware})" in texts
        assert len(gain.face.short) <= gains._SHORT
        assert any(f"{gain.stock} → {gain.patched}" in text for text in texts)


def test_readme_page_and_list_say_the_same_of_a_patch() -> None:
    """The gain of its first set-up in the README, and the cost of each."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = text.partition("<!-- gains -->")[2].partition("<!-- /gains -->")[0].splitlines()
    told: set[tuple[str, str]] = set()
    for group in gains.grouped(gains.read(ROOT)).values():
        for gain in group:
            assert gain.face is not None
            assert gain.face.patch in gain.patches
            (line,) = (line for line in lines if f"{gain.source}#{gain.rows[0]})" in line)
            expect, works, cost = (plain(cell) for cell in line.strip("| ").split(" | ")[2:])
            short = patch_page.read(gain.face.patch).headline(gain.release)
            assert short is not None
            assert cost == short.cost
            proven = [dict(by_id(sets.load())[each].proven_with or {}) for each in gain.patches]
            assert works == "one process" or works.split(", ") == [
                ONE,
                *(w for w, name in WORDS.items() if all(name in each for each in proven)),
            ]
            assert f"{gain.release} on {gain.hardware}" in expect
            figures = f"{gain.stock} → {gain.patched}"
            assert expect.endswith(figures)
            if (gain.face.patch, gain.release) not in told:
                told.add((gain.face.patch, gain.release))
                assert short.gain.startswith(figures), gain.face.patch
                assert short.ratio == pytest.approx(gain.ratio)
    assert told


def test_what_prevents_a_fault_here_is_first_in_its_set() -> None:
    judged = [Verdict(patch, "applies", "") for patch in sets.load()[0].patches]

    def listed(faults: str) -> list[str]:
        rows = [
            (one.patch.id, faults if one.patch.worth and one.patch.worth.rule == "b" else "off", ())
            for one in judged
        ]
        return re.findall(r"^  (\S+): ", table.of_patches(rows, judged, "0.5.23"), re.MULTILINE)

    assert listed(table.READY)[0] == listed(table.LIVE)[0] == "mlx.hybrid-cache"
    assert listed("not needed")[0] == "mlx.pool-write"
