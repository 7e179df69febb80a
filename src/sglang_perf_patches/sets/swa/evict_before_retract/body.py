"""swa.evict-before-retract: free KV behind the window before a running request is retracted.

Stock evicts at intervals, so each running request may hold an interval and a page more than its
window when the pool runs out. Upstream's proposal of this kind, sgl-project/sglang#28246, was
closed unmerged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..references import BATCH
from ..window import shares_prefixes

if TYPE_CHECKING:
    from ....model.patching import Patching


def install(patching: Patching) -> None:
    """Check again whether the next step fits, if evicting has freed something."""
    patching.anytime("it evicts by stock's own method and keeps nothing")

    def make(inner: Any) -> Any:
        def check_decode_mem(self: Any, selected_indices: Sequence[int] | None = None) -> bool:
            if inner(self, selected_indices):
                return True
            if not _serves(self) or not _evict(self, selected_indices):
                return False
            patching.ran.seen = True
            return bool(inner(self, selected_indices))

        return check_decode_mem

    patching.override(f"{BATCH}.check_decode_mem", make)


def _serves(batch: Any) -> bool:
    """Whether the batch has sliding-window KV that no prefix cache holds beside the requests."""
    allocator, cache = batch.token_to_kv_pool_allocator, batch.tree_cache
    if type(allocator).__name__ != "SWATokenToKVPoolAllocator":
        return False
    if getattr(allocator, "swa_req_ring", False):
        return False
    return bool(cache.supports_swa()) and not shares_prefixes(cache)


def _evict(batch: Any, selected_indices: Sequence[int] | None) -> bool:
    """Evict as stock's next `maybe_evict_swa` would, all requests at once; whether it freed any.

    A request without a decode step behind it is left alone, as stock does: with overlapped
    scheduling the batch that brought it may still run.
    """
    allocator = batch.token_to_kv_pool_allocator
    before = allocator.swa_available_size()
    indices = range(len(batch.reqs)) if selected_indices is None else selected_indices
    for req in (batch.reqs[index] for index in indices):
        if req.decode_batch_idx >= 1 and _row(req) is not None:
            batch._evict_swa(req, req.seqlen - 1)
    return bool(allocator.swa_available_size() > before)


def _row(req: Any) -> int | None:
    row: int | None = req.req_pool_idx if hasattr(req, "req_pool_idx") else req.kv.req_pool_idx
    return row
