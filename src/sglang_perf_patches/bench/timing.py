"""Times of stock and patched, taken in turns in one process."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Ratio:
    """How long patched takes, with stock as the measure.

    Attributes:
        stock: median time, in seconds.
        patched: median time, in seconds.
        ratio: median over the rounds of patched : stock, below 1 if patched is faster.
        low: first quartile of the same.
        high: third quartile of the same.
    """

    stock: float
    patched: float
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.2f} ({self.low:.2f}-{self.high:.2f})"


def ratio(stock: Iterable[float], patched: Iterable[float]) -> Ratio:
    """The ratio of times that were taken in pairs, in seconds; at least two pairs."""
    first, second = list(stock), list(patched)
    each = [theirs / ours for ours, theirs in zip(first, second, strict=True)]
    low, middle, high = statistics.quantiles(each, n=4, method="inclusive")
    return Ratio(statistics.median(first), statistics.median(second), middle, low, high)


def interleaved(
    run: Callable[[], object],
    patched: Callable[[], AbstractContextManager[object]],
    *,
    rounds: int = 11,
    repeat: int = 1,
    synchronize: Callable[[], object] = lambda: None,
) -> Ratio:
    """Time the same work on stock and patched, round by round, the order alternating.

    Args:
        run: the work.
        patched: makes the patch live while it is entered, as `proof.comparing.live` does.
        rounds: how many times each is timed, after one round that is thrown away.
        repeat: how many runs one time is the mean of.
        synchronize: waits until the device has finished.
    """
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds + 1):
        for is_patched in (False, True) if number % 2 else (True, False):
            with patched() if is_patched else nullcontext():
                run()  # setup at the first use is not part of a step
                synchronize()
                began = time.perf_counter()
                for _ in range(repeat):
                    run()
                synchronize()
                times[is_patched].append((time.perf_counter() - began) / repeat)
    return ratio(times[False][1:], times[True][1:])


def progress(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """The items, with a bar where stderr is a terminal and tqdm is there, as beside sglang."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield from items
        return
    yield from tqdm(items, desc=what, total=total, disable=None, leave=False, file=sys.stderr)
