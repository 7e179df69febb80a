"""The rule that tells a difference from noise, on numbers made for it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_perf_patches.bench_server.noise import change, mann_whitney

_DISTRIBUTIONS: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda chosen: chosen.gauss(100, 5),
    "skewed": lambda chosen: chosen.lognormvariate(4, 0.3),
    "outliers": lambda chosen: chosen.gauss(100, 20 if chosen.random() < 0.1 else 4),
}


def test_a_clear_gain_in_three_turns_is_beyond_the_noise() -> None:
    gain = change([100, 104, 102], [70, 72, 69])
    assert gain.word == "less"
    assert gain.ratio == pytest.approx(0.692, abs=1e-3)
    assert (gain.low, gain.high) == (pytest.approx(69 / 102), pytest.approx(0.7))


@pytest.mark.parametrize(
    ("word", "stock", "patched"),
    [
        ("more", [70, 72, 69], [100, 104, 102]),
        ("one turn", [100], [1]),
        ("within", [100, 104, 102], [70, 72, 101]),  # they overlap
        # Three turns lie apart by more than their spread, or are within the noise.
        ("within", [100, 110, 105], [95, 99, 97]),
        ("within", [100, 102, 101], [95, 99, 97]),
        ("less", [100, 102, 101], [94, 97, 96]),
        # Two turns lie apart by more than twice their spread.
        ("within", [100, 102], [97, 99]),
        ("less", [100, 102], [95, 97]),
        # Four turns lie apart or do not.
        ("less", [100, 110, 105, 107], [95, 99, 97, 98]),
        ("within", [100, 110, 105, 98.5], [95, 99, 97, 98]),
        ("same", [16384.0] * 3, [16384.0] * 3),
        ("more", [100.0] * 3, [101.0] * 3),
        # A conclusion must not say ``better: host memory the same``.
        ("within", [100.0] * 3, [100.4] * 3),
        ("within", [1000.0, 1000.1], [999.0, 999.1]),
        ("within", [100.0] * 5, [100.4] * 5),
        ("more", [100.0] * 3, [100.6] * 3),
    ],
)
def test_what_is_beyond_the_noise(word: str, stock: list[float], patched: list[float]) -> None:
    assert change(stock, patched).word == word


@pytest.mark.parametrize("turns", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("name", _DISTRIBUTIONS)
def test_equal_sides_pass_as_seldom_as_the_rule_says(turns: int, name: str) -> None:
    chosen = random.Random(turns)
    draw = _DISTRIBUTIONS[name]
    passed = sum(
        change(*[[draw(chosen) for _ in range(turns)] for _ in range(2)]).word != "within"
        for _ in range(4000)
    )
    assert 0 < passed / 4000 < (0.09 if turns == 2 else 0.055)


@pytest.mark.parametrize("turns", [3, 5])
def test_a_gain_of_many_spreads_is_found(turns: int) -> None:
    chosen = random.Random(turns)
    sides = [
        change(
            [chosen.gauss(100, 2) for _ in range(turns)],
            [chosen.gauss(75, 2) for _ in range(turns)],
        )
        for _ in range(500)
    ]
    assert sum(compared.word == "less" for compared in sides) > 495


def test_the_exact_test_has_the_known_values() -> None:
    low, high = [1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]
    assert mann_whitney(low, high) == pytest.approx(2 / 70)
    assert mann_whitney([1.0, 2.0, 3.0, 4.0, 7.5], [5.0, 6.0, 7.0, 8.0, 9.0]) == pytest.approx(
        14 / 252
    )
    assert mann_whitney(low, low) == 1.0


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=5),
    st.lists(st.integers(0, 30), min_size=1, max_size=5),
)
def test_the_exact_test_counts_as_all_orders_do(first: list[int], second: list[int]) -> None:
    """Its probability, against one that tries every way to share the ranks."""
    pairs = len(first) * len(second)

    def above(ours: tuple[int, ...], theirs: tuple[int, ...]) -> float:
        return sum((a > b) + (a == b) / 2 for a in ours for b in theirs)

    seen = above(tuple(first), tuple(second))
    extreme = min(seen, pairs - seen)
    ranks = range(len(first) + len(second))
    counts = [
        above(ours, tuple(rank for rank in ranks if rank not in ours))
        for ours in itertools.combinations(ranks, len(first))
    ]
    share = sum(min(count, pairs - count) <= int(extreme + 0.5) for count in counts) / len(counts)
    assert mann_whitney(first, second) == pytest.approx(min(1.0, share), abs=1e-9) or (
        2 * int(extreme + 0.5) >= pairs  # the two tails meet in the middle
    )
    assert mann_whitney(first, second) == mann_whitney(second, first)
