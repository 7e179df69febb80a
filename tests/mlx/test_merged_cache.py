"""``mlx.merged-cache`` beyond its case: that the case can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Found = Callable[..., Any]


@pytest.mark.whole_matrix  # the whole case, once for each way to break it
def test_the_case_tells_the_patch_from_one_that_is_broken(found: Found) -> None:
    verdicts = found("0.5.10.post1", "broken_merged_cache")
    assert verdicts.pop("whole") == "equal"
    # What a failed step leaves behind has a shape that can't be joined.
    assert verdicts == {
        "every step merges": "different",
        "a batch in another order is taken for the same": "different",
        "a failed step counts": "raised ValueError",
    }


@pytest.mark.whole_matrix  # two environments of its own
def test_it_asks_a_merged_cache_for_nothing_that_older_mlx_lm_has_not(found: Found) -> None:
    """0.5.10 takes any mlx-lm, and the one with a `size()` came out around the same time."""
    assert found("0.5.10.post1", "older_mlx_lm") == {"0.30.2": "equal", "0.31.1": "equal"}
