"""Times of stock and patched, taken in turns in one process."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
_SAY_S = 5.0


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


def turns(rounds: int) -> Iterator[bool]:
    """Whether each turn is the patched side's: two a round, their order alternating."""
    for number in range(rounds):
        yield from (False, True) if number % 2 else (True, False)


def in_turns(stock: Callable[[], float], patched: Callable[[], float], rounds: int) -> Ratio | None:
    """The ratio of times, in seconds, that both sides take in turns; None below two rounds."""
    if rounds < 2:
        return None
    times: dict[bool, list[float]] = {False: [], True: []}
    for is_patched in turns(rounds):
        times[is_patched].append((patched if is_patched else stock)())
    return ratio(times[False], times[True])


def call_time(
    run: Callable[[], object], calls: int, synchronize: Callable[[], object], *, warm_up: int = 1
) -> float:
    """Seconds a call, back to back, until the device has finished; setup is not part of it."""
    for _ in range(warm_up):
        run()
    synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        run()
    synchronize()
    return (time.perf_counter() - began) / calls


def progress(items: Iterable[T], what: str) -> Iterator[T]:
    """The items, with a line on stderr as each begins, but no more than one in five seconds.

    Whole lines: what a terminal would overwrite says nothing in a file.
    """
    listed = list(items)
    began = spoke = time.monotonic()
    for number, item in enumerate(listed, 1):
        now = time.monotonic()
        if number == 1 or now - spoke >= _SAY_S:
            spoke = now
            # In one piece: the line of another process must not come before this one's end.
            sys.stderr.write(f"  {what}: {number} of {len(listed)}, {now - began:.0f} s\n")
            sys.stderr.flush()
        yield item
