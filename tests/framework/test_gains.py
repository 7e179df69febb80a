"""The table of ``help gains`` says what the committed results say; the README is short and true."""

import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_perf_patches import patch_page, sets
from sglang_perf_patches.cli import table
from sglang_perf_patches.cli.verbs import helping
from sglang_perf_patches.compat.verdict import Verdict
from sglang_perf_patches.model.patch import by_id
from sglang_perf_patches.patch_page import ONE, WORDS, plain
from tests.benchmarks import gains
from tests.maintain import ROOT, quotes, tables

ROWS = quotes.rows(ROOT, sets.NAMES)
README = (ROOT / "README.md").read_text(encoding="utf-8")
describe = runpy.run_path(str(ROOT / "setup.py"))["description"]


def test_every_figure_is_in_the_results_that_the_row_names() -> None:
    assert gains.unfounded(gains.read(ROOT), ROWS) == []


def test_a_figure_that_the_results_lack_is_named() -> None:
    first, *_ = gains.read(ROOT)
    changed = [
        replace(first, rows=("gone", *first.rows)),
        replace(first, patched="9 MB"),
        replace(first, patches=("a.b",)),
    ]
    assert gains.unfounded(changed, ROWS) == [
        f"{first.source} has no gone",
        f"{first.setup}: 9 is in none of {', '.join(first.rows)}",
        f"{first.setup}: a.b is not measured there",
    ]


def test_a_ratio_is_that_of_the_means() -> None:
    first, *_ = gains.read(ROOT)
    gain = replace(first, stock="1,000, 3,000 MB", patched="500, 1.0 MB")
    assert gain.ratio == pytest.approx(501 / 4000)
    assert gain.is_a_gain


def test_the_rows_name_patches_and_some_gain_nothing() -> None:
    rows = gains.read(ROOT)
    assert {id for gain in rows for id in gain.patches} <= set(by_id(sets.load()))
    assert any(gain.ratio >= 1 for gain in rows)


def test_the_page_of_gains_has_few_rows_that_all_gain_in_three_groups() -> None:
    groups = gains.grouped(gains.read(ROOT))
    assert list(groups) == ["newest", "mlx", "pinned"]
    shown = [gain for members in groups.values() for gain in members]
    assert all(groups.values())
    assert len(shown) <= 9
    assert all(gain.is_a_gain for gain in shown)
    table = gains.table(gains.read(ROOT), ROOT).splitlines()
    assert len([line for line in table if line.startswith("| ")]) == 2 * len(groups) + len(shown)
    for gain in shown:
        assert sum(f"{gain.source}#{gain.rows[0]})" in line for line in table) == 1


def test_the_page_has_every_row() -> None:
    page = (ROOT / gains.PAGE).read_text(encoding="utf-8")
    assert page.count("\n| ") == 2 + len(gains.read(ROOT))


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    lines = README.splitlines()
    assert len(lines) <= 80
    assert len(README.split()) <= 700
    assert len([line for line in lines if line.startswith("| ")]) == 2 + 5
    commands = [line.split("#")[0].strip() for line in lines if line.startswith("    ")]
    assert {"python3 examples/mlx_server_on_cpu.py", "python3 -m tests"} <= {*commands}
    for topic in helping.topics():
        assert f"src/sglang_perf_patches/pages/{topic}.md)" in README, topic


def test_the_figures_of_the_readme_are_in_the_results() -> None:
    as_prose = README.replace("\n| ", "\n\n")
    assert quotes.unfounded(as_prose, "README.md", ROWS) == []
    wrong = as_prose.replace("49.7 → 28.5", "49.7 → 20.5")
    assert quotes.unfounded(wrong, "README.md", ROWS) == ["README.md: default-qwen-130 has no 20.5"]


def test_the_table_a_patch_s_page_and_list_say_the_same() -> None:
    """The gain of its first set-up in the table, and the cost of each."""
    text = (ROOT / gains.FACE).read_text(encoding="utf-8")
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
        states = {
            one.patch.id: (faults if table.prevents(one.patch) else "off", "") for one in judged
        }
        text = table.of_patches(judged, judged, states, "0.5.23")
        return re.findall(r"^  (\S+): ", text, re.MULTILINE)

    assert listed(table.READY)[0] == listed(table.LIVE)[0] == "mlx.hybrid-cache"
    assert listed("not needed")[0] == "mlx.pool-write"


def test_every_link_of_the_description_is_an_address() -> None:
    described = describe(README)
    targets = re.findall(r"\]\(([^)]*)\)", described)
    assert targets
    assert [target for target in targets if not target.startswith("https://")] == []


def test_what_a_link_says_stays() -> None:
    text = "![a chart](examples/a.svg)\n\n[a page](src/a.md), [a site](https://a.example)"
    assert describe(text) == "a page, [a site](https://a.example)"


@pytest.mark.parametrize(
    "document",
    [
        *(ROOT / "README.md", ROOT / ".github/CONTRIBUTING.md", ROOT / gains.PAGE),
        *sorted((ROOT / "src/sglang_perf_patches/pages").glob("*.md")),
    ],
    ids=lambda path: path.name,
)
def test_every_link_leads_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    missing = {
        name for name in targets if "://" not in name and not (document.parent / name).exists()
    }
    assert missing == set()


def test_the_badges_are_described() -> None:
    told = tables.badges(ROOT)
    assert list(told) == ["version", "Python", "sglang", "licence"]
    assert f"![{tables.label_of(told)}]({tables.BADGES})" in README
