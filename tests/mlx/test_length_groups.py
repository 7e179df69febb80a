"""``mlx.length-groups``: which requests are a group, and what its checks say of broken groups."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_perf_patches.sets.mlx import grouping

LENGTHS = st.lists(st.integers(1, 40_000), min_size=2, max_size=24)


@given(LENGTHS)
def test_groups_hold_each_request_once_and_save_what_they_must(lengths: list[int]) -> None:
    groups = grouping.groups_of(lengths)
    assert sorted(row for group in groups for row in group) == [*range(len(lengths))]
    assert all(group == sorted(group) for group in groups)
    attended = sum(len(group) * max(lengths[row] for row in group) for group in groups)
    if len(groups) > 1:
        assert len(lengths) * max(lengths) - attended >= (len(groups) - 1) * grouping.AT_LEAST
    by_length = sorted(groups, key=lambda group: max(lengths[row] for row in group))
    for shorter, longer in itertools.pairwise(by_length):
        assert max(lengths[row] for row in shorter) < min(lengths[row] for row in longer)


@given(LENGTHS)
def test_requests_of_like_length_are_one_group(lengths: list[int]) -> None:
    near = [max(lengths) - length % 7 for length in lengths]
    assert grouping.groups_of([max(each, 1) for each in near]) == [[*range(len(lengths))]]


def test_one_long_request_beside_short_ones() -> None:
    assert grouping.groups_of([100, 100, 4000, *[100] * 13]) == [[0, 1, *range(3, 16)], [2]]
    assert grouping.groups_of([4000, 100]) == [[0, 1]], "it saves too little"


@pytest.mark.parametrize("release", ["0.5.11", "0.5.17", "0.5.23"])
@pytest.mark.whole_matrix  # the whole case, once for each way to break it
def test_broken_groups_are_found(found: Any, release: str) -> None:
    verdicts = found(release, "broken_groups")
    assert verdicts.pop("whole") == "equal"
    unnoticed = {verdict for verdict in verdicts.values() if not verdict.startswith("raised ")}
    assert unnoticed <= {"different"}, verdicts
