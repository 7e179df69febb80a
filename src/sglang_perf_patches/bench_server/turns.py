"""Boots both sides in turns, in an order that favours neither."""

from __future__ import annotations

from collections.abc import Callable

from ..model.errors import OperatorError
from . import boot
from .boot import Boot, Plan
from .sides import Side


def take(
    plan: Plan, sides: tuple[Side, Side], turns: int, say: Callable[[str], None]
) -> tuple[list[tuple[Boot, Boot]], str]:
    """The completed turns, each with a boot of both sides, and why they stopped early, or "".

    Odd turns have the sides in reverse order: so no side gains from a machine that steadily becomes
    faster or slower.
    """
    done: list[tuple[Boot, Boot]] = []
    for turn in range(1, turns + 1):
        boots: dict[str, Boot] = {}
        for side in reversed(sides) if turn % 2 else sides:
            head = f"turn {turn} of {turns}, {side.name}"
            say(f"{head}: boot {2 * turn - 1 + len(boots)} of {2 * turns}")
            try:
                boots[side.name] = boot.run(
                    plan,
                    side,
                    name=f"{turn}-{side.name}",
                    say=lambda line, head=head: say(f"{head}: {line}"),  # type: ignore[misc]
                )
            except OperatorError as error:
                return done, f"turn {turn}, {side.name}: {error}"
        done.append((boots[sides[0].name], boots[sides[1].name]))
    return done, ""
