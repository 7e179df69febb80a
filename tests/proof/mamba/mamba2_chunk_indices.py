"""Mamba2's metadata of batches that the host does not know, or not wholly, is stock's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_perf_patches.verify.mamba.harness import Played, alike
from sglang_perf_patches.verify.mamba.mamba2_chunk_indices import PATCH, mixed_of
from tests.proof.mamba.harness import CHANGED, UNKNOWN, Counted, counted_gdn


def mixed_changed(change: Callable[[Counted, Any], None]) -> Played:
    """As `mixed`, of a batch that something changed on its way."""
    batch = counted_gdn().batch(CHANGED)
    change(counted_gdn(), batch)
    return mixed_of(CHANGED, batch)


CHECKS = {
    "unknown batches": lambda _: alike((PATCH,), mixed_changed, UNKNOWN, most=None),
}
