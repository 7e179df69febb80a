"""The boots of both sides in turns, in an order that favours neither."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from . import BenchError, UsageError, boot
from .boot import Boot, Plan

SIDES = {False: "stock", True: "patched"}


@dataclass(frozen=True)
class Stopped:
    """Where it came to an end before its time, and why, in a sentence."""

    turn: int
    side: str
    reason: str

    def __str__(self) -> str:
        return f"turn {self.turn}, {self.side}: {self.reason}"


def order(turns: int) -> Iterator[tuple[int, bool]]:
    """Turn, from 1, and whether the boot is patched: patched first, then stock first, and so on.

    So a machine that gets slower or faster all the time favours neither side.
    """
    for turn in range(1, turns + 1):
        first = turn % 2 == 1
        yield turn, first
        yield turn, not first


def take(
    plan: Plan, turns: int, say: Callable[[str], None]
) -> tuple[list[tuple[Boot, Boot]], Stopped | None]:
    """The turns that came to their end, stock's boot and patched's, and what stopped them.

    Raises:
        UsageError: the first boot can't even begin.
    """
    done: list[tuple[Boot, Boot]] = []
    half: Boot | None = None
    began = time.monotonic()
    for number, (turn, is_patched) in enumerate(order(turns)):
        side = SIDES[is_patched]
        left = ""
        if number >= 2:
            seconds = (time.monotonic() - began) / number * (2 * turns - number)
            left = f" (about {seconds / 60:.0f} min left)" if seconds > 60 else ""
        head = f"turn {turn} of {turns}, {side}"
        say(f"{head}: boot {number + 1} of {2 * turns}{left}")
        try:
            found = boot.run(
                plan,
                name=f"{turn}-{side}",
                is_patched=is_patched,
                say=lambda line, head=head: say(f"{head}: {line}"),  # type: ignore[misc]
            )
        except BenchError as error:
            if isinstance(error, UsageError) and number == 0:
                raise
            return done, Stopped(turn, side, str(error))
        if half is None:
            half = found
        else:
            done.append((half, found) if is_patched else (found, half))
            half = None
    return done, None
