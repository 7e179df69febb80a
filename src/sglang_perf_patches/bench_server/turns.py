"""Boots both sides in turns, in an order that favours neither."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from . import BenchError, boot
from .boot import Boot, Plan
from .sides import Side


@dataclass(frozen=True)
class Stopped:
    """Why the turns ended early, in a sentence."""

    turn: int
    side: str
    reason: str

    def __str__(self) -> str:
        return f"turn {self.turn}, {self.side}: {self.reason}"


def order(turns: int, sides: tuple[Side, Side]) -> Iterator[tuple[int, Side]]:
    """``(turn from 1, side)`` of each boot; odd turns have the sides in reverse order.

    So no side gains from a machine that steadily becomes faster or slower.
    """
    for turn in range(1, turns + 1):
        for side in reversed(sides) if turn % 2 else sides:
            yield turn, side


def take(
    plan: Plan, turns: int, say: Callable[[str], None]
) -> tuple[list[tuple[Boot, Boot]], Stopped | None]:
    """The completed turns, each with a boot of both sides in order, and why they stopped early."""
    done: list[tuple[Boot, Boot]] = []
    taken: dict[str, Boot] = {}
    first, second = plan.sides
    began = time.monotonic()
    for number, (turn, side) in enumerate(order(turns, plan.sides)):
        left = ""
        if number >= 2:
            seconds = (time.monotonic() - began) / number * (2 * turns - number)
            left = f" (about {seconds / 60:.0f} min left)" if seconds > 60 else ""
        head = f"turn {turn} of {turns}, {side.name}"
        say(f"{head}: boot {number + 1} of {2 * turns}{left}")
        try:
            taken[side.name] = boot.run(
                plan,
                side,
                name=f"{turn}-{side.name}",
                say=lambda line, head=head: say(f"{head}: {line}"),  # type: ignore[misc]
            )
        except BenchError as error:
            return done, Stopped(turn, side.name, str(error))
        if len(taken) == 2:
            done.append((taken[first.name], taken[second.name]))
            taken = {}
    return done, None
