"""Pairs of the swa patches, and all of them, in random episodes of one decode worker."""

from itertools import combinations
from typing import Any

import pytest
from groups import GROUPS

import tiers
from matrix import applying

TOGETHER = {"swa.tail-prealloc", "swa.page-size-1", "swa.idle-admission"}
"""Those that a decode worker runs."""
SEED = 700


@pytest.mark.parametrize(
    "release",
    [*(pytest.param(each, marks=pytest.mark.whole_matrix) for each in GROUPS[:-1]), GROUPS[-1]],
)
def test_pairs_and_all_serve_what_they_admit(
    run_jobs: Any, request: pytest.FixtureRequest, release: str
) -> None:
    """Admitted in order, all tokens, whole pools; and a worker broken on purpose is noticed."""
    patches = [patch for patch in applying("swa", release) if patch in TOGETHER]
    selections = [*map(list, combinations(patches, 2)), patches]
    count = 10 if tiers.is_whole(request.config) else 2
    given = {"selections": selections, "seed": SEED, "count": count}
    # Old releases leave a slot mapped only where a request holds more tokens than its own.
    wrong = {"selections": [patches], "seed": SEED, "count": 8, "over": 3}
    names = ["clear_before_tail", "unmap_pages", "record_evicted"]
    breaks = {"names": names, "selection": "none"}
    played, broken = run_jobs(
        release,
        [("together", given), ("broken", {**breaks, "job": "together", "arguments": wrong})],
    )
    assert "error" not in played, played["error"]
    assert played["value"]["episodes"] == count * len(selections)
    assert played["value"]["served"] > count * len(selections)
    assert broken.get("value"), broken
