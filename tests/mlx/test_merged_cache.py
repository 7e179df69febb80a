"""``mlx.merged-cache`` beyond its case: that the case can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Found = Callable[..., Any]


def test_the_case_tells_the_patch_from_one_that_is_broken(found: Found) -> None:
    verdicts = found("0.5.10.post1", "broken_merged_cache")
    assert verdicts.pop("whole") == "equal"
    assert len(verdicts) == 3
    # What a failed step left behind may also be of a shape that can't be joined.
    assert set(verdicts.values()) <= {"different", "raised ValueError"}
