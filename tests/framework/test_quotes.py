"""A measured figure stands in one committed row; the documents quote that row by its id."""

import re

import pytest

from sglang_perf_patches import patch_page, sets
from sglang_perf_patches.cli.verbs import helping
from sglang_perf_patches.model import releases
from sglang_perf_patches.model.patch import Patch, by_id
from tests.maintain import ROOT, pages, quotes, tested
from tests.maintain.pages import Section
from tests.maintain.quotes import Row

ROWS = quotes.rows(ROOT, sets.NAMES)
PATCHES = by_id(sets.load())

FILE = "src/sglang_perf_patches/sets/mla/a/README.md"
LINK = "../../../../../tests/benchmarks/results/mla.md"
SECTION = Section("tests/benchmarks/results/mla.md", "", "", "H200", {"mla.a": ("0.5.23",)})
KNOWN = {
    ("tests/benchmarks/results/mla.md", "r"): Row(
        "| 0.5.23, 16 | 4.06 | 0.945 (0.911-0.960) |", SECTION
    )
}


def text_of(patch: Patch) -> str:
    return patch_page.path(patch.id).read_text(encoding="utf-8")


@pytest.mark.parametrize("patch", PATCHES.values(), ids=lambda patch: patch.id)
def test_every_figure_of_a_page_is_in_a_committed_row_of_that_patch(patch: Patch) -> None:
    file = pages.file(patch.id)
    assert quotes.unfounded(text_of(patch), file, ROWS, patch.id) == []


@pytest.mark.parametrize("patch", PATCHES.values(), ids=lambda patch: patch.id)
def test_a_page_is_one_screen_with_every_section(patch: Patch) -> None:
    text = text_of(patch)
    assert text.count("\n") <= 80
    headings = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert headings == [
        *("What you gain", "What it costs", "Proven with", "Switch it"),
        *("Why", "How", "Obsolete when", "Releases"),
    ]
    parsed = patch_page.parse(text)
    assert all(parsed)
    assert all(map(all, parsed.headlines))


_MEASURED = re.compile(r".+ \(([\w.]+), (?:MLX for CUDA, )?([^,()]+)\)")


@pytest.mark.parametrize("patch", PATCHES.values(), ids=lambda patch: patch.id)
def test_the_gain_that_list_shows_names_its_release_and_machine(patch: Patch) -> None:
    lines = text_of(patch).partition("| if you use | gain | cost |\n")[2].splitlines()[1:]
    shorts = patch_page.read(patch.id).headlines
    order = [releases.KNOWN.index(short.release) for short in shorts if short.release]
    assert order == sorted(order, reverse=True)
    set_ups = len(patch.gain_with.split(" | "))
    assert len(order) == len({*order}) or len(order) == set_ups
    for line, short in zip(lines, shorts, strict=False):
        cell = line.split(" | ")[1]
        quoted = [ROWS[key] for _, key in quotes._quoted(cell, pages.file(patch.id))]
        assert bool(quoted) == bool(re.match(r"\d", short.gain))
        for row in quoted:
            said = _MEASURED.fullmatch(short.gain)
            assert said, short.gain
            assert said[1] == short.release
            assert said[1] in row.section.on.get(patch.id, row.section.on.get(patch.set, ()))
            assert said[2] in row.section.machine


def test_all_pages_together_are_short() -> None:
    assert sum(text_of(patch).count("\n") for patch in PATCHES.values()) <= 2500


def test_a_row_that_is_quoted_names_machine_release_command_and_date() -> None:
    assert ROWS
    for (file, row_id), row in ROWS.items():
        for part in (row.section.machine, row.section.command, row.section.date):
            assert part, f"{file}#{row_id}"
        assert all(row.section.on.values()), f"{file}#{row_id}"


def test_every_measured_section_names_its_machine_and_releases_that_it_speaks_of() -> None:
    assert tested.unfounded(ROOT, sets.load()) == []


HELP = [path.relative_to(ROOT).as_posix() for path in sorted(helping.FOLDER.glob("*.md"))]


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", *HELP])
def test_the_other_documents_have_no_figures_but_those_of_generated_tables(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    prose = "\n".join(line for line in lines if not line.startswith("|"))
    assert quotes.unfounded(prose, name, ROWS) == []


def test_the_figures_that_list_shows_have_none_of_their_own() -> None:
    for patch in by_id(sets.load()).values():
        assert quotes.unfounded(patch.summary, FILE, {}) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("| [a](%s#r) | 1 | 0.945 (0.911 to 0.960) |", []),
        ("| [a](%s#r) | 4.1 ms | 0.93 |", ["r has no 0.93"]),
        ("| [a](%s#r) | 4.1 ms | 0.95 |", []),
        ("It takes [4.06 ms](%s#r).", []),
        ("It takes [4.07 ms](%s#r).", ["r has no 4.07"]),
        ("It takes [4.06 ms](%s#s).", ["there is no row s in tests/benchmarks/results/mla.md"]),
        ("It takes 4.06 ms.", ["4.06 ms has no row"]),
        ("It takes\n0.945 of the time on 0.5.23.", ["0.945 has no row"]),
        ("| a | 12 % |", ["12 % has no row"]),
        ("A wait of `50 ms`, 16 requests, 0.5.12.post1, 2026-11-21.", []),
    ],
)
def test_what_no_row_says_is_named(text: str, wrong: list[str]) -> None:
    unfounded = quotes.unfounded(text.replace("%s", LINK), FILE, KNOWN, "mla.a")
    assert [any(part in each for each in unfounded) for part in wrong] == [True] * len(wrong)
    assert bool(unfounded) == bool(wrong)


def test_a_row_of_another_patch_is_named() -> None:
    unfounded = quotes.unfounded(f"[4.06]({LINK}#r)", FILE, KNOWN, "mla.b")
    assert unfounded == [f"{FILE}: r was not measured of mla.b"]


def test_an_id_may_stand_before_a_paragraph_or_a_table() -> None:
    text = '<a id="p"></a>Took 3 s.\n\n<a id="t"></a>\n\n| a |\n| --- |\n| <a id="c"></a>5 |\n'
    assert dict(quotes._rows_of(text)) == {
        "p": '<a id="p"></a>Took 3 s.',
        "t": '| a |\n| --- |\n| <a id="c"></a>5 |\n',
        "c": '| <a id="c"></a>5 |',
    }


MADE_FOR = {
    *("mlx.decode-context", "mla.sync-opt-out", "mla.draft-metadata"),
    *("mamba.zero-sync", "swa.tail-prealloc"),
}
"""The upstream changes that the project was made for."""


def test_patches_that_are_on_by_default_have_a_reason_and_no_others() -> None:
    assert {id for id, patch in PATCHES.items() if patch.worth} == {
        id for id, patch in PATCHES.items() if patch.is_default
    }


def test_only_those_that_the_project_was_made_for_are_on_for_that() -> None:
    upstream = {
        id: patch for id, patch in PATCHES.items() if patch.worth and patch.worth.rule == "c"
    }
    assert upstream.keys() == MADE_FOR
    for patch in upstream.values():
        assert patch.worth is not None
        assert patch.worth.because == patch.upstream[0]


@pytest.mark.parametrize("patch", PATCHES.values(), ids=lambda patch: patch.id)
def test_a_measured_gain_is_in_committed_results_of_that_patch(patch: Patch) -> None:
    worth = patch.worth
    if worth is None or worth.rule != "a":
        assert worth is None or not worth.source + worth.row
        return
    row = ROWS[worth.source, worth.row]
    assert patch.id in row.section.on
    numbers = quotes.numbers(worth.because)
    assert [number for number in numbers if quotes.is_in(number, quotes.numbers(row.text))]


def test_a_reason_is_one_line() -> None:
    for patch in PATCHES.values():
        if patch.worth:
            assert 0 < len(patch.worth.because) < 100
            assert not patch.worth.because.endswith(".")
