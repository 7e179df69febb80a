"""``mlx.batched-prefill``: which prompts are a group, and what its checks say of broken ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_perf_patches.sets.mlx.batched_prefill import grouping, rows
from sglang_perf_patches.sets.mlx.batched_prefill.grouping import Prompt, Shape, groups

PREFIXES = st.sampled_from([0, 0, 1, 7, 300, 304, 1_000])
SIZES = st.lists(st.tuples(PREFIXES, st.integers(1, 5_000)), max_size=24)


def _prompts(sizes: list[tuple[int, int]]) -> list[Prompt]:
    return [Prompt(number, *size) for number, size in enumerate(sizes)]


@given(SIZES)
def test_a_group_keeps_its_bounds_and_no_prompt_is_in_two(sizes: list[tuple[int, int]]) -> None:
    chosen = groups(_prompts(sizes))
    numbers = [prompt.number for group in chosen for prompt in group]
    assert len(numbers) == len(set(numbers))
    for group in chosen:
        prefix = min(prompt.prefix for prompt in group)
        longest = max(prompt.prefix + prompt.tokens for prompt in group)
        assert 2 <= len(group) <= grouping.MOST_PROMPTS
        assert grouping.shape(group) == Shape(len(group), prefix, longest - prefix)
        assert len(group) * longest <= grouping.MOST_TOKENS
        assert sum(prompt.tokens for prompt in group) * 4 >= len(group) * (longest - prefix) * 3
        assert all((prompt.prefix - prefix) * 8 <= prompt.tokens for prompt in group)


@given(st.integers(1, 8), st.integers(0, 3_000), st.integers(1, 3_000))
def test_a_rounded_shape_holds_the_group_or_is_not_rounded(
    rows: int, prefix: int, tokens: int
) -> None:
    of = Shape(rows, prefix, tokens)
    rounded = of.rounded()
    if rounded == of:
        return
    assert rounded.rows in {1, 2, 4, 8}
    assert rounded.prefix % 32 == rounded.tokens % 32 == 0
    assert rows <= rounded.rows < 2 * rows
    assert rounded.prefix <= prefix
    assert prefix + tokens <= rounded.prefix + rounded.tokens < prefix + tokens + 64
    assert rounded.rows * (rounded.prefix + rounded.tokens) <= grouping.MOST_ROUNDED


def test_lengths_that_are_near_have_one_rounded_shape() -> None:
    shapes = {Shape(rows, 97, tokens).rounded() for rows in (5, 6, 7) for tokens in range(66, 96)}
    assert shapes == {Shape(8, 96, 96)}
    assert Shape(8, 0, 300).rounded() == Shape(8, 0, 300)


def test_a_chance_prefix_keeps_no_prompt_out_of_its_group() -> None:
    chosen = groups(_prompts([(0, 192), (1, 191), (0, 192), (96, 96), (97, 95), (96, 90)]))
    assert [[prompt.number for prompt in group] for group in chosen] == [[0, 1, 2], [3, 4, 5]]


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


def test_a_row_fits_a_cache_that_ends_where_it_begins() -> None:
    part = rows.Part(5, 3, (), 0)
    assert part.fits(SimpleNamespace(shape=(1, 3)), [SimpleNamespace(offset=5)])
    assert not part.fits(SimpleNamespace(shape=(1, 3)), [SimpleNamespace(offset=2)])
    assert not part.fits(SimpleNamespace(shape=(1, 4)), [SimpleNamespace(offset=5)])


@pytest.mark.parametrize("release", ["0.5.23"])
@pytest.mark.whole_matrix  # the whole case, once for each way to break it
def test_broken_rows_are_found(found: Callable[..., Any], release: str) -> None:
    verdicts = found(release, "broken_rows")
    assert verdicts.pop("whole") == "equal"
    unnoticed = {verdict for verdict in verdicts.values() if not verdict.startswith("raised ")}
    assert unnoticed <= {"different"}, verdicts
