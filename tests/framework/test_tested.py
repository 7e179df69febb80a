"""The page of what was tested claims only what the committed results say."""

from __future__ import annotations

from pathlib import Path

from sglang_perf_patches import sets
from sglang_perf_patches.model import releases
from sglang_perf_patches.model.patch import Patch, PatchSet
from tests.maintain import ROOT, pages, tested

PATCH = Patch(id="mla.a", summary="")
OTHER = Patch(id="mla.b", summary="")
SETS = [PatchSet("mla", "", (PATCH, OTHER))]


def write(root: Path, text: str) -> None:
    folder = root / pages.RESULTS
    folder.mkdir(parents=True)
    (folder / "mla.md").write_text(text, encoding="utf-8")


def test_every_section_names_a_machine_and_releases_that_it_speaks_of() -> None:
    assert tested.unfounded(ROOT, sets.load()) == []


def test_the_committed_page_names_every_patch_and_every_file_of_results() -> None:
    page = (ROOT / tested.PAGE).read_text(encoding="utf-8")
    for patch_set in sets.load():
        for patch in patch_set.patches:
            assert f"`{patch.id}`" in page
        assert pages.all_sections(ROOT, patch_set.name)
        assert f"]({patch_set.name}.md)" in page


def test_a_claim_that_the_results_do_not_bear_out_is_named(tmp_path: Path) -> None:
    write(
        tmp_path,
        "# Head\n\n<!-- measured: mla.a mla.gone; H200; on 0.5.17 0.5.20 0.5.23 -->\n\n"
        "On 0.5.19 to 0.5.22.\n\n<!-- measured: mla.b -->\n\nNothing.\n",
    )
    wrong = tested.unfounded(tmp_path, SETS)
    assert [text.partition(": ")[2] for text in wrong] == [
        "there is no mla.gone",
        *(f"it says nothing of {release}" for release in ("0.5.17", "0.5.23") * 2),
        "it names no machine",
    ]


def test_a_cell_has_the_machine_where_the_patch_applies(tmp_path: Path) -> None:
    write(
        tmp_path,
        "# Head\n\n<!-- measured: mla.a mla.b(0.5.23); H200; on 0.5.22 0.5.23 -->\n\n"
        "0.5.22, 0.5.23\n\n<!-- measured: mla.a; CPU; on 0.5.22 -->\n\n0.5.22\n",
    )
    never = dict.fromkeys(releases.KNOWN, "absent")
    words = {
        "mla.a": {**never, "0.5.21": "applies", "0.5.22": "applies", "0.5.23": "built-in"},
        "mla.b": {**never, "0.5.22": "applies", "0.5.23": "applies"},
    }
    lines = tested.page(tmp_path, SETS, words).splitlines()
    assert "| patch | 0.5.22 | 0.5.23 | others |" in lines
    assert "| `mla.a` | H200, CPU |  | · |" in lines
    assert "| `mla.b` | · | H200 |  |" in lines
