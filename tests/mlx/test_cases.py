"""The set's own cases, with inputs from hypothesis, once for identical released code of a patch."""

from typing import Any

import pytest

from matrix import to_prove
from sglang_perf_patches import sets, verify
from tests.proof import needs_no_scheduler

GROUPS = to_prove("mlx")
"""The patches to prove on a release."""


@pytest.mark.parametrize("release", GROUPS)
def test_every_patch_gives_what_stock_gives(proved: Any, shown: Any, release: str) -> None:
    patches = shown("mlx", release, GROUPS[release], GROUPS)
    by_patch = proved(release, patches)
    for patch in patches:
        assert by_patch[patch].get("compared", 0) > 0, by_patch[patch]


def test_every_patch_has_a_case_and_every_release_a_group() -> None:
    patches = {patch.id for patch in sets.declared("mlx").patches}
    assert all(verify.cases(patch) for patch in patches if needs_no_scheduler(patch))
    assert {patch for of in GROUPS.values() for patch in of} == patches - {"mlx.decode-context"}
    assert {"0.5.12.post1", "0.5.23"} <= set(GROUPS)


def test_a_difference_counts_only_where_stock_repeats_itself(found: Any) -> None:
    verdicts = found("0.5.23", "restless_stock")
    unlike = verdicts.pop("stock differs")
    assert unlike == "stock gives other values each time on Device(cpu, 0) with layers as qwen3's"
    assert verdicts.pop("results may differ where logits are near") == "equal"
    assert verdicts == dict.fromkeys(
        (
            "stock differs on a CPU",
            "the patch differs",
            "logits are far",
            "results may not differ on a CPU",
        ),
        "different",
    )
