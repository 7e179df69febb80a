"""Playing inputs on stock and with patches live, and counting what waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .. import Different
from ..comparing import differs, live

T = TypeVar("T")

Played = tuple[Any, list[str]]
"""The results of a run that must be equal, and the places that waited."""


def alike(
    chosen: Sequence[Sequence[str]],
    run: Callable[[T], Played],
    inputs: Sequence[T],
    *,
    most: int | Callable[[T], int] | None = 0,
) -> int:
    """Run every input on stock and then with patches; each pair must be equal.

    Args:
        chosen: ids of the patches that are live together, for each time that they are.
        run: gives what must be equal, and what waited.
        inputs: at least one.
        most: how often a patched run may wait, or what tells that of an input on stock; None if
            that says nothing. Otherwise stock must have waited more often in all.

    Returns:
        how many pairs were compared.

    Raises:
        Different: two results differ, or a patched run waited too often.
    """
    if not inputs:
        raise Different(f"{chosen}: no input was made")
    stock = [run(value) for value in inputs]
    bounds = [most(value) if callable(most) else most for value in inputs]
    for patches in chosen:
        with live(*patches):
            patched = [run(value) for value in inputs]
        names = ", ".join(patches)
        for value, (expected, _), (found, waits), bound in zip(
            inputs, stock, patched, bounds, strict=True
        ):
            difference = differs(expected, found)
            if difference:
                raise Different(f"{names}, {value!r}: {difference}")
            if bound is not None and len(waits) > bound:
                raise Different(f"{names}, {value!r}: waits at {', '.join(waits)}")
        if most is not None and not _waits(patched) < _waits(stock):
            raise Different(f"{names}: stock does not wait for these inputs")
    return len(inputs) * len(chosen)


def _waits(played: Sequence[Played]) -> int:
    return sum(len(waits) for _, waits in played)
