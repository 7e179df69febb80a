"""Mamba2's waits, and its metadata of batches that the host does not know, or not wholly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.mamba.harness import source_has
from sglang_perf_patches.verify.mamba.mamba2_chunk_indices import (
    PATCH,
    mixed,
    of_forwards,
    of_metadata,
)
from sglang_perf_patches.verify.mamba.rig import Mamba2
from tests.proof.mamba.harness import CHANGED, UNKNOWN, Counted, alike, counted_gdn


def mixed_changed(change: Callable[[Counted, Any], None]) -> dict[str, Any]:
    """As `mixed`, of a batch that something changed on its way."""
    batch = counted_gdn().batch(CHANGED)
    change(counted_gdn(), batch)
    return mixed(counted_gdn(), CHANGED, batch)


def metadata(inputs: Inputs) -> int:
    """Without a wait; 0.5.14 reads the mask of the tracked rows too, which is on the device."""
    asks_mask = source_has("mamba.mamba2_metadata", "& mamba_track_mask")
    return alike(
        *(PATCH, partial(mixed, counted_gdn()), of_metadata(inputs)),
        most=lambda batch: int(asks_mask and batch.tracking),
    )


CHECKS = {
    "metadata": metadata,
    "forwards": lambda _: alike(PATCH, Counted(Mamba2()).forwards, of_forwards(), most=None),
    "unknown batches": lambda _: alike(PATCH, mixed_changed, UNKNOWN, most=None),
}
