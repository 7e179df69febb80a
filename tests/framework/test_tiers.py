"""What the default tier plays for a change."""

from __future__ import annotations

import pytest

import tiers
from sglang_perf_patches import sets
from sglang_perf_patches.model import releases

MLA = sets.declared("mla").patches
IDS = [patch.id for name in sets.NAMES for patch in sets.declared(name).patches]
SOURCE = "src/sglang_perf_patches"


@pytest.mark.parametrize(
    ("changed", "patches"),
    [
        (f"{SOURCE}/sets/mla/draft_metadata/body.py", {"mla.draft-metadata"}),
        (f"{SOURCE}/verify/mla/draft_metadata.py", {"mla.draft-metadata"}),
        ("tests/proof/swa/page_size_1.py", {"swa.page-size-1"}),
        ("tests/proof/mla/cases.py", {patch.id for patch in MLA}),
        (f"{SOURCE}/sets/mla/proven.py", {patch.id for patch in MLA}),
        (f"{SOURCE}/sets/mla/known.json", set()),
        (f"{SOURCE}/live/engine.py", set()),
        ("tests/proof/mlx/cases.py", set()),  # of more patches than the default tier has time for
    ],
)
def test_a_file_is_of_its_patch_or_of_the_whole_set(changed: str, patches: set[str]) -> None:
    assert tiers.touched_by([changed], IDS) == patches


def test_each_variant_of_a_touched_patch_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    patch = max(MLA, key=lambda each: len(each.variants))
    assert len(patch.variants) > 1
    monkeypatch.setattr(tiers, "touched", lambda: {patch.id})
    for variant in patch.variants:
        (release,) = tiers.newest_of(variant.releases)
        assert patch.id in tiers.shown_there(MLA, release, [patch.id], releases.KNOWN)
    assert {*tiers.of_touched("mla", releases.KNOWN)} <= {
        release for variant in patch.variants for release in variant.releases
    }
    assert tiers.of_touched("framework", releases.KNOWN) == {}
