"""``mamba.freed-rows``: a verify tracks no state of a request that was released before it.

Where a step's results are taken before the next step is launched, a request that ends with them is
still in that next batch. It has no place for states any more. 0.5.13 to 0.5.15.post1 fail to make a
tensor of that; later releases take the first slot that it had, which the prefix cache may own now.
"""

from __future__ import annotations

from typing import Any

from ....model.patching import Patching, replaces
from ..request_slots import holder
from . import TRACK

_DUMMY = 0
"""The slot that stock reserves for what rows of padding write."""


def install(patching: Patching) -> None:
    """All releases."""
    patching.anytime("it keeps nothing between two calls")

    @replaces(patching, TRACK)
    def set_mamba_track_indices_from_reqs(batch: Any, *planned: Any, inner: Any) -> None:
        holders = [holder(req) for req in batch.reqs]
        freed = [row for row, each in enumerate(holders) if each.mamba_next_track_idx is None]
        try:
            for row in freed:
                holders[row].mamba_next_track_idx = 0  # any that can be looked up
            inner(batch, *planned)
        finally:
            for row in freed:
                holders[row].mamba_next_track_idx = None
        for row in freed:  # one by one: a list of rows would make the host wait for the GPU
            batch.mamba_track_indices[row] = _DUMMY
            patching.ran.seen = True
