"""``mamba.freed-rows`` on the released code: a request that ends while a verify has it."""

from typing import Any

import pytest

from matrix import before
from sglang_perf_patches.model.releases import from_spans

CLAIMED = from_spans("0.5.13 … 0.5.21")
EACH = pytest.mark.parametrize(
    "release",
    [
        pytest.param(each, marks=() if each == CLAIMED[-1] else pytest.mark.whole_matrix)
        for each in CLAIMED
    ],
)
DIES = "'NoneType' object cannot be interpreted as an integer"
WRONG = "r1 goes on after 64 tokens with another state"


@EACH
def test_stock_dies_or_has_a_wrong_state_but_not_the_patched_one(found: Any, release: str) -> None:
    told = found(release, "freed_jobs", "both")
    assert told == {"stock": DIES if before(release, "0.5.16") else WRONG, "patched": ""}


@pytest.mark.whole_matrix
@pytest.mark.parametrize("release", ["0.5.22", "0.5.23"])
def test_later_releases_have_no_wrong_state(found: Any, release: str) -> None:
    assert found(release, "freed_jobs", "stock", algorithm="NGRAM") == {"says": ""}


@pytest.mark.whole_matrix
@pytest.mark.parametrize("release", ["0.5.17", "0.5.21"])
def test_eagle_does_not_wait_for_a_grammar_since_0_5_17(found: Any, release: str) -> None:
    """So no request has ended before a verify."""
    assert found(release, "freed_jobs", "stock", algorithm="EAGLE") == {"says": ""}
    assert found(release, "freed_jobs", "freed_with_eagle") == [0, 0, 0]


@pytest.mark.whole_matrix
@pytest.mark.parametrize("release", ["0.5.13", "0.5.15.post1", "0.5.16", "0.5.18", "0.5.21"])
def test_random_episodes(found: Any, release: str) -> None:
    job = "with_ngram" if not before(release, "0.5.17") else "with_eagle"
    counts = found(release, "freed_jobs", job, count=12)
    assert counts["freed"] > 12
    assert bool(counts["died"]) == before(release, "0.5.16")


@pytest.mark.whole_matrix
@pytest.mark.parametrize("release", ["0.5.15.post1", "0.5.21"])
def test_a_broken_patch_is_found(found: Any, release: str) -> None:
    assert found(release, "freed_jobs", "broken") == WRONG
