"""swa.window-metadata on each release that it is declared for: real backends, pools and kernels."""

from typing import Any

import pytest

import tiers
from sglang_perf_patches import sets
from sglang_perf_patches.model.patch import by_id

pytestmark = pytest.mark.newest


PATCH = by_id(sets.load())["swa.window-metadata"]
RELEASES = tuple(release for variant in PATCH.variants for release in variant.releases)
WAITS = {"replayed": 2, "decode": 3, "extend": 3}
"""Where stock waits with a window pool. Without one it waits where it makes a buffer."""


@pytest.fixture(scope="module", params=RELEASES)
def answers(request: pytest.FixtureRequest, values: Any) -> dict[str, Any]:
    whole = tiers.is_whole(request.config)
    jobs: dict[str, dict[str, Any]] = {
        "waits_for_windows": {},
        "windows_not_served_are_stocks": {},
        "windows_of_batches": {"count": 16 if whole else 6},
    }
    return values(request.param, {**jobs, "broken_windows": {}} if whole else jobs)


def test_no_batch_waits_for_the_length_of_its_windows(answers: dict[str, Any]) -> None:
    for kind, told in answers["waits_for_windows"].items():
        mode = kind.removeprefix("no pool, ")
        expected = WAITS[mode] if mode == kind else WAITS[mode] - 2
        assert len(told["stock"]) == expected, (kind, told)
        assert told["patched"] == [], kind


def test_batches_are_told_and_compute_what_stocks_are(answers: dict[str, Any]) -> None:
    assert answers["windows_of_batches"] > 5


def test_what_is_not_served_is_stocks(answers: dict[str, Any]) -> None:
    reasons = answers["windows_not_served_are_stocks"]
    assert "are translated by Other" in reasons.pop("another pool")
    assert reasons == {"a larger pool of windows": "", "too many cells": ""}


@pytest.mark.whole_matrix
def test_a_broken_patch_is_noticed(answers: dict[str, Any]) -> None:
    broken = answers["broken_windows"]
    assert len(broken) == 4
    assert all(broken.values()), broken
