"""Playing inputs on stock and with patches live, and counting what waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sglang_perf_patches.verify.comparing import both, require, require_same

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
    bounds = [most(value) if callable(most) else most for value in inputs]
    spared = 0
    for (value, stock, patched), bound in zip(both(patches, run, inputs), bounds, strict=True):
        (expected, stocks_waits), (actual, waits) = stock, patched
        where = f"{names}, {value!r}"
        require_same(where, expected, actual)
        allowed = bound is None or len(waits) <= bound
        require(allowed, f"{where}: waits at {', '.join(waits)}")
        spared += len(stocks_waits) - len(waits)
    require(most is None or spared > 0, f"{names}: stock does not wait for these inputs")
    return len(inputs)
