"""The rule that tells a difference from noise, on numbers made for it."""

import math
import random
from collections.abc import Callable
from functools import cache

import pytest

from sglang_perf_patches.bench_server.outcome import change, mann_whitney

_DISTRIBUTIONS: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda chosen: chosen.gauss(100, 5),
    "skewed": lambda chosen: chosen.lognormvariate(4, 0.3),
    "outliers": lambda chosen: chosen.gauss(100, 20 if chosen.random() < 0.1 else 4),
}


def test_the_ratio_is_that_of_the_medians() -> None:
    assert change([100, 104, 102], [70, 72, 69]).ratio == pytest.approx(70 / 102)


@pytest.mark.parametrize(
    ("word", "stock", "patched"),
    [
        ("less", [100, 104, 102], [70, 72, 69]),
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
    chosen, draw, passed = random.Random(turns), _DISTRIBUTIONS[name], 0
    for _ in range(4000):
        stock, patched = ([draw(chosen) for _ in range(turns)] for _ in range(2))
        passed += change(stock, patched).word != "within"
    assert 0 < passed / 4000 < (0.09 if turns == 2 else 0.055)


@pytest.mark.parametrize("turns", [3, 5])
def test_a_gain_of_many_spreads_is_found(turns: int) -> None:
    chosen, found = random.Random(turns), 0
    for _ in range(500):
        stock, patched = ([chosen.gauss(mean, 2) for _ in range(turns)] for mean in (100, 75))
        found += change(stock, patched).word == "less"
    assert found > 495


@pytest.mark.parametrize("turns", range(4, 11))
def test_the_test_passes_as_few_orders_as_the_exact_one(turns: int) -> None:
    """The least clear order of distinct values that passes, against a count of all orders."""

    @cache
    def orders(first: int, second: int, above: int) -> int:
        if not first or not second:
            return int(above == 0)
        return orders(first - 1, second, above - second) + orders(first, second - 1, above)

    def exact(above: int) -> float:
        fewer = sum(orders(turns, turns, each) for each in range(above + 1))
        return 2 * fewer / math.comb(2 * turns, turns)

    low = [2.0 * number for number in range(turns)]  # 0, 2, 4 …
    passing = []
    for above in range(turns * turns // 2):
        # Of `high` all are above `low`, but one or more that `above` pairs have below.
        whole, rest = divmod(above, turns)
        high = [-1.0] * whole + [100.0] * (turns - whole - 1)
        high.append(2.0 * (turns - rest) - 1)
        assert sum(a > b for a in low for b in high) == above
        if mann_whitney(low, high) < 0.05:
            passing.append(above)
    least = max(passing)
    assert exact(least) < 0.05
    assert exact(least + 1 + (turns == 8)) >= 0.05


def test_the_test_is_symmetric_and_a_tie_counts_half() -> None:
    low, high = [1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]
    assert mann_whitney(low, high) == mann_whitney(high, low) == pytest.approx(2 / 70, abs=0.003)
    assert mann_whitney(low, low) == 1.0
