"""``mlx.batched-prefill``: which prompts are a group, and what its checks say of broken ones."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_perf_patches.sets.mlx.batched_prefill import body, grouping, rows
from sglang_perf_patches.sets.mlx.batched_prefill.grouping import Group, Prompt, groups

PREFIXES = st.sampled_from([0, 0, 1, 7, 300, 304, 1_000])
SIZES = st.lists(
    st.tuples(PREFIXES, st.integers(1, 5_000), st.sampled_from([0, 0, 16])), max_size=24
)


def _prompts(sizes: list[tuple[int, int, int]]) -> list[Prompt]:
    return [
        Prompt(str(number), prefix, range(prefix), range(tokens), min(first, tokens - 1), {})
        for number, (prefix, tokens, first) in enumerate(sizes)
    ]


def _chosen(lengths: list[int], prefix: int = 0) -> list[list[int]]:
    chosen = groups(_prompts([(prefix, length, 0) for length in lengths]))
    return [[int(prompt.request) for prompt in group] for group in chosen]


@given(SIZES)
def test_a_group_has_bounds_and_no_prompt_is_in_two(sizes: list[tuple[int, int, int]]) -> None:
    chosen = groups(_prompts(sizes))
    requests = [prompt.request for group in chosen for prompt in group]
    assert len(requests) == len(set(requests))
    for group in chosen:
        prefixes = [len(prompt.slots) for prompt in group]
        lengths = [len(prompt.tokens) for prompt in group]
        assert 2 <= len(group) <= grouping.MOST_PROMPTS
        assert len(group) * max(lengths) <= grouping.MOST_TOKENS
        assert len(group) * (max(prefixes) + max(lengths)) <= grouping.MOST_KV
        assert sum(lengths) * 4 >= len(group) * max(lengths) * 3
        assert max(prefixes) - min(prefixes) < 256
        assert all(prefixes) or not any(prefixes)
        assert len({prompt.first for prompt in group}) == 1


@given(SIZES.filter(bool), st.booleans())
def test_passes_hold_all_tokens_of_a_group(sizes: list[tuple[int, int, int]], rounds: bool) -> None:
    first = min(first for _, _, first in sizes)
    prompts = _prompts([(prefix, tokens + first, first) for prefix, tokens, _ in sizes[:8]])
    group = Group(prompts, rounds=rounds)
    assert group.wanted == len(prompts)
    assert group.prompts[: group.wanted] == prompts
    assert all(prompt is prompts[0] for prompt in group.prompts[group.wanted :])
    held = [sum(parts) for parts in zip(*(lengths for lengths, _ in group.passes), strict=True)]
    assert held == [len(prompt.tokens) for prompt in group.prompts]
    assert all(max(lengths) <= tokens for lengths, tokens in group.passes)
    behind = max(len(prompt.slots) for prompt in prompts)
    if [tokens for _, tokens in group.passes] != [max(lengths) for lengths, _ in group.passes]:
        assert rounds
        assert len(group.prompts) in {1, 2, 4, 8}
        assert len(group.prompts) < 2 * len(prompts)
        assert all(tokens % 32 == 0 for _, tokens in group.passes)
        assert behind <= group.behind < behind + 32
        assert len(group.prompts) * max(held) <= grouping.MOST_ROUNDED


def test_lengths_that_are_near_have_one_rounded_shape() -> None:
    shapes = set()
    for number in (5, 6, 7):
        for tokens in range(66, 96):
            group = Group(_prompts([(97, tokens, 0)] * number), rounds=True)
            shapes.add((len(group.prompts), group.behind, group.passes[0][1]))
    assert shapes == {(8, 128, 96)}
    long = Group(_prompts([(0, 300, 0)] * 7), rounds=True)
    assert (len(long.prompts), long.passes[0][1]) == (7, 300)


def test_a_chance_prefix_keeps_no_prompt_out_of_its_group() -> None:
    layout = SimpleNamespace(has_auxiliary_state=False, auxiliary_layer_indices=())
    runner: Any = SimpleNamespace(
        _cache_layout=layout, _new_cache_skeleton=lambda: [None], disable_radix_cache=True
    )
    batches = object.__new__(body.Batches)
    batches._plans = False
    prompts = []
    for number, (prefix, tokens) in enumerate([(0, 192), (1, 191), (0, 192), (96, 96), (97, 95)]):
        slots, whole = range(prefix), range(prefix + tokens)
        noted = body.Noted(lambda: None, str(number), slots, whole, 0, None, None)
        prompt = batches._prompt(runner, noted)
        assert prompt is not None
        assert (prompt.start, len(prompt.slots)) == (prefix, prefix if prefix > 1 else 0)
        prompts.append(prompt)
    chosen = [[each.request for each in group] for group in groups(prompts)]
    assert chosen == [["0", "1", "2"], ["3", "4"]]


@given(st.integers(0, 40), st.integers(1, 100), st.integers(2, 24))
def test_prompts_of_one_size_wait_for_nobody(prefix: int, tokens: int, number: int) -> None:
    sizes = [len(group) for group in _chosen([tokens] * number, prefix)]
    whole, rest = divmod(number, grouping.MOST_PROMPTS)
    assert sizes == [grouping.MOST_PROMPTS] * whole + [rest] * (rest > 1)


def test_a_long_prompt_beside_short_ones_is_computed_alone() -> None:
    assert _chosen([30, 900, 28, 31]) == [[3, 0, 2]]
    assert (
        _chosen([grouping.MOST_TOKENS // 2 + 1, *itertools.repeat(grouping.MOST_TOKENS, 2)]) == []
    )


def test_a_part_fits_a_call_at_its_place() -> None:
    behind = rows.Part(5, 3, ())
    assert behind.fits(SimpleNamespace(shape=(1, 3)), [SimpleNamespace(offset=5)])
    assert not behind.fits(SimpleNamespace(shape=(1, 3)), [SimpleNamespace(offset=2)])
    assert not behind.fits(SimpleNamespace(shape=(1, 2)), [SimpleNamespace(offset=5)])


@pytest.mark.parametrize("release", ["0.5.23"])
@pytest.mark.whole_matrix  # the whole case, once for each way to break it
def test_broken_rows_are_found(found: Any, release: str) -> None:
    verdicts = found(release, "broken_rows")
    assert verdicts.pop("whole") == "equal"
    unnoticed = {verdict for verdict in verdicts.values() if not verdict.startswith("raised ")}
    assert unnoticed <= {"different"}, verdicts
