"""``mlx.released-rows``: decoded KV is written to the pool while its request has its row.

Stock writes it before a later prompt's prefill, or once the request has left the batch: to the
slots in the row that the request had. By then the row may be another request's. Decode steps that
are chained own no slots at all: the row has those of a request before it there.
"""

from __future__ import annotations

from typing import Any

from ....model.patching import Patching, replaces
from . import RELEASE, SYNC, WRITE


def install(patching: Patching) -> None:
    """All releases."""
    patching.anytime("what a released request has decoded is in the pool, and its row is forgotten")
    owned: int | None = None  # tokens of the request that is being released

    @replaces(patching, RELEASE)
    def prepare_for_kv_cache_release(self: Any, req: Any, *, inner: Any) -> None:
        nonlocal owned
        runner = self._mlx_runner
        # Up to 0.5.20 the length has another name.
        length = getattr(req, "owned_kv_len", None) or req.effective_kv_committed_len
        owned = length()
        try:
            inner(self, req)
            if not runner.disable_radix_cache:
                patching.ran.seen = True
                runner._sync_decode_kv_to_pool(req.rid)
        finally:
            owned = None
        runner._req_pool_idx.pop(req.rid, None)

    @replaces(patching, SYNC)
    def sync_decode_kv_to_pool(self: Any, req_id: str, *, inner: Any) -> None:
        # No prompt reads what a request decodes before the request is released.
        if owned is not None:
            inner(self, req_id)

    @replaces(patching, WRITE)
    def sync_new_kv_to_pool(
        self: Any, cache: Any, cache_start: int, slot_ids: Any, *, inner: Any
    ) -> None:
        if owned is not None and cache_start + len(slot_ids) > owned:
            slot_ids = slot_ids[: max(owned - cache_start, 0)]
        inner(self, cache, cache_start, slot_ids)

    # Above mlx.pool-write, which postpones other requests' writes to the end of this one.
