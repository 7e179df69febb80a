"""Decides whether two sides differ by more than boots of one side differ from each other.

`RULE` is simple enough to be checked by eye. In simulations with equal sides (normal, log-normal,
with outliers) it finds a false difference in 7 of 100 figures with two turns, and in 3 to 5 with
more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Literal

RULE = (
    "A difference is beyond the noise if every boot of one side lies on the same side of every "
    "boot of the other, and the two medians are further apart than the boots of either side are "
    "from each other (with two turns: twice as far). From four turns on, if the Mann-Whitney test "
    "gives less than 5 %. Less than half a percent is never beyond it. Between equal servers, 3 to "
    "7 of 100 figures pass."
)
Word = Literal["less", "more", "within", "same", "one turn"]
"""Patched is ``less`` or ``more`` than stock beyond the noise; the difference is ``within`` the
noise; all values are the ``same``; or there was only ``one turn``, which shows no noise."""

_LEVEL = 0.05
_LEAST = 0.005
_DISTANCE = {2: 2.0, 3: 1.0}


@dataclass(frozen=True)
class Change:
    """One figure of both sides."""

    stock: Sequence[float]  # turn by turn; `patched` likewise
    patched: Sequence[float]
    ratio: float  # patched : stock, of the medians
    word: Word


def change(stock: Sequence[float], patched: Sequence[float]) -> Change:
    """Compare the values of both sides, one per turn; stock's must be above zero."""
    ratio = median(patched) / median(stock)
    word: Word = "within"
    if len(stock) < 2:
        word = "one turn"
    elif len({*stock, *patched}) == 1:
        word = "same"
    elif abs(1 - ratio) > _LEAST and _is_beyond(stock, patched):
        word = "less" if ratio < 1 else "more"
    return Change(stock, patched, ratio, word)


def _is_beyond(stock: Sequence[float], patched: Sequence[float]) -> bool:
    distance = _DISTANCE.get(len(stock))
    if distance is None:
        return mann_whitney(stock, patched) < _LEVEL
    is_apart = max(patched) < min(stock) or min(patched) > max(stock)
    spread = max(max(side) - min(side) for side in (stock, patched))
    return is_apart and abs(median(patched) - median(stock)) > distance * spread


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p-value of the Mann-Whitney U test, by the normal approximation.

    A tie counts half. For 4 to 10 turns it is below 5 % where the exact value is, except for the
    least clear order of 8 turns (exact: 4.99 %).
    """
    above = sum((a > b) + (a == b) / 2 for a in first for b in second)
    pairs = len(first) * len(second)
    deviation = math.sqrt(pairs * (len(first) + len(second) + 1) / 12)
    distance = max(0.0, abs(above - pairs / 2) - 0.5) / deviation
    return 2 * NormalDist().cdf(-distance)
