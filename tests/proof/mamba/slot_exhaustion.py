"""A server with few slots goes on where stock dies; until then it decides and holds the same."""

from __future__ import annotations

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import live, require
from tests.proof.mamba.exhaustion import (
    PATCH,
    alike,
    drained,
    short_of_copies,
    short_of_its_prefix,
    short_of_rows,
    short_of_tokens,
)
from tests.proof.mamba.hybrid_parts import trees

SERVED = 12
"""Drawn episodes of a server: each takes a tenth of a second."""

CROWDED = tuple(
    (make, (tree, tracked))
    for tracked in (True, False)
    for tree in trees()
    for make in (short_of_rows, short_of_copies, short_of_its_prefix)
)

KEPT = tuple((short_of_tokens, (tree, tracked)) for tracked in (True, False) for tree in trees())
"""Stock dies of these on 0.5.9 only."""


def where_stock_dies(_: Inputs) -> int:
    """Servers that can't give a slot: stock dies, patched they drain."""
    for make, kind in CROWDED:
        died = drained(make(*kind)).died
        require(died, f"{PATCH}: stock does not die, {make.__name__}, {kind}")
    with live(PATCH):
        for make, kind in (*CROWDED, *KEPT):
            died = drained(make(*kind)).died
            require(not died, f"{PATCH}: {make.__name__}, {kind}: {died}")
    return len(CROWDED) + len(KEPT)


def random_episodes(inputs: Inputs) -> int:
    """Step by step as stock, as long as that lives."""
    return alike(inputs(lambda random: random.getrandbits(32), SERVED)).total()


CHECKS = {"where stock dies": where_stock_dies, "random episodes": random_episodes}
