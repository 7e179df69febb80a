"""``mlx.batched-prefill``: which prompts are a group, and what its checks say of broken ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_perf_patches.sets.mlx.batched_prefill import grouping
from sglang_perf_patches.sets.mlx.batched_prefill.grouping import Prompt, groups

SIZES = st.lists(st.tuples(st.sampled_from([0, 0, 7, 300]), st.integers(1, 5_000)), max_size=24)


def _prompts(sizes: list[tuple[int, int]]) -> list[Prompt]:
    return [Prompt(number, *size) for number, size in enumerate(sizes)]


@given(SIZES)
def test_a_group_keeps_its_bounds_and_no_prompt_is_in_two(sizes: list[tuple[int, int]]) -> None:
    chosen = groups(_prompts(sizes))
    numbers = [prompt.number for group in chosen for prompt in group]
    assert len(numbers) == len(set(numbers))
    for group in chosen:
        longest = max(prompt.tokens for prompt in group)
        assert 2 <= len(group) <= grouping.MOST_PROMPTS
        assert len({prompt.prefix for prompt in group}) == 1
        assert len(group) * (longest + group[0].prefix) <= grouping.MOST_TOKENS
        assert sum(prompt.tokens for prompt in group) * 4 >= len(group) * longest * 3


@given(st.integers(0, 40), st.integers(1, 100), st.integers(2, 24))
def test_prompts_of_one_size_wait_for_nobody(prefix: int, tokens: int, number: int) -> None:
    sizes = [len(group) for group in groups(_prompts([(prefix, tokens)] * number))]
    whole, rest = divmod(number, grouping.MOST_PROMPTS)
    assert sizes == [grouping.MOST_PROMPTS] * whole + [rest] * (rest > 1)


def test_a_long_prompt_beside_short_ones_is_computed_alone() -> None:
    chosen = groups(_prompts([(0, 30), (0, 900), (0, 28), (0, 31)]))
    assert [[prompt.number for prompt in group] for group in chosen] == [[3, 0, 2]]
    lengths = [grouping.MOST_TOKENS // 2 + 1, *itertools.repeat(grouping.MOST_TOKENS, 2)]
    assert groups(_prompts([(0, length) for length in lengths])) == []


@pytest.mark.parametrize("release", ["0.5.23"])
@pytest.mark.whole_matrix  # the whole case, once for each way to break it
def test_broken_rows_are_found(
    found: Callable[..., Any], unnoticed: Callable[..., Any], release: str
) -> None:
    verdicts = found(release, "broken_rows")
    assert verdicts.pop("whole") == "equal"
    assert unnoticed(verdicts) == {}
