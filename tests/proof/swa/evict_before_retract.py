"""Fewer requests are retracted, and every token of every request is decoded."""

from __future__ import annotations

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import require
from tests.proof.swa.alike import live_throughout, random_episodes, with_room
from tests.proof.swa.cases import pressed
from tests.proof.swa.episodes import PAGES

PATCH = "swa.evict-before-retract"

LOADS = ((16, 1, 420), (32, 1, 440), (32, 1, 520))
"""Window, page size and sliding-window pool, which is too small, in tokens."""


def too_small_pools(_: Inputs) -> int:
    """Loads of which stock retracts requests."""
    # On stock alone: other patches of the set change its pools.
    stock = [pressed(*load, watched=False) for load in LOADS]
    with live_throughout(PATCH):
        for load, expected in zip(LOADS, stock, strict=True):
            outcome = pressed(*load)
            all_there = outcome["finished"] == expected["finished"] == 12
            require(all_there, f"{PATCH}, {load}: {outcome}, stock {expected}")
            fewer = outcome["retractions"] < expected["retractions"]
            require(fewer, f"{PATCH}, {load}: not fewer retractions: {outcome}, stock {expected}")
    return len(LOADS)


CHECKS = {
    "with room for everything": lambda inputs: with_room(PATCH, inputs, PAGES, ran=False),
    "pools that are too small": too_small_pools,
    "random episodes": lambda inputs: random_episodes(PATCH, inputs, (1,)),
}
