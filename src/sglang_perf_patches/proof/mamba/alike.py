"""Playing inputs on stock and with patches live, and counting what waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..comparing import live, require, require_same

T = TypeVar("T")

Played = tuple[Any, list[str]]
"""The results of a run that must be equal, and the places that waited."""


def alike(
    patches: Sequence[str],
    run: Callable[[T], Played],
    inputs: Sequence[T],
    *,
    most: int | Callable[[T], int] | None = 0,
) -> int:
    """Run every input on stock and then with patches; each pair must be equal.

    Args:
        patches: ids of those that are live together.
        run: gives what must be equal, and what waited.
        inputs: at least one.
        most: how often a patched run may wait, or what tells that of an input on stock; None if
            that says nothing. Otherwise stock must have waited more often in all.

    Returns:
        how many pairs were compared.

    Raises:
        Different: two results differ, or a patched run waited too often.
    """
    names = ", ".join(patches)
    require(inputs, f"{names}: no input was made")
    stock = [run(value) for value in inputs]
    bounds = [most(value) if callable(most) else most for value in inputs]
    with live(*patches):
        patched = [run(value) for value in inputs]
    for value, (expected, _), (actual, waits), bound in zip(
        inputs, stock, patched, bounds, strict=True
    ):
        where = f"{names}, {value!r}"
        require_same(where, expected, actual)
        allowed = bound is None or len(waits) <= bound
        require(allowed, f"{where}: waits at {', '.join(waits)}")
    if most is not None:
        fewer = _waits(patched) < _waits(stock)
        require(fewer, f"{names}: stock does not wait for these inputs")
    return len(inputs)


def _waits(played: Sequence[Played]) -> int:
    return sum(len(waits) for _, waits in played)
