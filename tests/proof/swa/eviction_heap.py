"""The same leaves of a full prefix cache go, in the same order."""

from __future__ import annotations

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import same
from tests.proof.swa.evictions import episode, play
from tests.proof.swa.prefix_trees import prepare

PATCH = "swa.eviction-heap"

FULL = 40
"""Drawn episodes of a cache: they take a few seconds."""


def full_caches(inputs: Inputs) -> int:
    """Episodes of caches of each kind, in each order that stock has."""
    prepare()
    return same(PATCH, play, inputs(episode, FULL))


CHECKS = {"full caches": full_caches}
