"""Playing inputs on stock and with patches live, and counting what waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import sglang_perf_patches

from ... import activation
from .. import Different
from ..comparing import differs, installed

T = TypeVar("T")

Played = tuple[Any, list[str]]
"""What a run gives that must be equal, and the places that waited."""


@contextmanager
def live(*patches: str) -> Iterator[None]:
    """Have some patches live together, and stock back afterwards.

    Raises:
        Different: one of them did not go live, or none of them ran.
    """
    selection = ",".join(patches)
    report = activation.activate(selection, tree=installed())
    try:
        for patch in patches:
            state = report.of(patch)
            if state.state != "live":
                raise Different(f"{patch} is {state.state}: {state.reason}")
        yield
        seen = sglang_perf_patches.activate(selection)
        if not any(seen.of(patch).ran for patch in patches):
            raise Different(f"{selection} never ran")
    finally:
        sglang_perf_patches.deactivate()


def alike(
    chosen: Sequence[Sequence[str]],
    run: Callable[[T], Played],
    inputs: Sequence[T],
    *,
    most: int | None = 0,
) -> int:
    """Run every input on stock and then with patches; each pair must be equal.

    Args:
        chosen: ids of the patches that are live together, for each time that they are.
        run: gives what must be equal, and what waited.
        inputs: at least one.
        most: how often a patched run may wait; None where that says nothing. With a number, stock
            must have waited more often in all.

    Returns:
        how many pairs were compared.

    Raises:
        Different: two results differ, or a patched run waited too often.
    """
    if not inputs:
        raise Different(f"{chosen}: no input was made")
    stock = [run(value) for value in inputs]
    for patches in chosen:
        with live(*patches):
            patched = [run(value) for value in inputs]
        names = ", ".join(patches)
        for value, (expected, _), (found, waits) in zip(inputs, stock, patched, strict=True):
            difference = differs(expected, found)
            if difference:
                raise Different(f"{names}, {value!r}: {difference}")
            if most is not None and len(waits) > most:
                raise Different(f"{names}, {value!r}: waits at {', '.join(waits)}")
        if most is not None and not _waits(patched) < _waits(stock):
            raise Different(f"{names}: stock does not wait for these inputs")
    return len(inputs) * len(chosen)


def _waits(played: Sequence[Played]) -> int:
    return sum(len(waits) for _, waits in played)
