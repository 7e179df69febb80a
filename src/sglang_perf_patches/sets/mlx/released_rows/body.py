"""``mlx.released-rows``: decoded KV is written to the pool while its request has its row.

Stock writes it before a later prompt's prefill, or once the request has left the batch: to the
slots in the row that the request had. By then the row may be another request's. Decode steps that
are chained own no slots at all: the row has those of a request before it there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import RELEASE, SYNC, WRITE

if TYPE_CHECKING:
    from ....model.patching import Patching


def install(patching: Patching) -> None:
    """All releases."""
    patching.anytime("what a released request has decoded is in the pool, and its row is forgotten")
    owned: int | None = None  # tokens of the request that is being released

    def releases(inner: Any) -> Any:
        def prepare_for_kv_cache_release(self: Any, req: Any) -> None:
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

        return prepare_for_kv_cache_release

    def syncs(inner: Any) -> Any:
        def sync_decode_kv_to_pool(self: Any, req_id: str) -> None:
            # No prompt reads what a request decodes before the request is released.
            if owned is not None:
                inner(self, req_id)

        return sync_decode_kv_to_pool

    def writes(inner: Any) -> Any:
        def sync_new_kv_to_pool(self: Any, cache: Any, cache_start: int, slot_ids: Any) -> None:
            if owned is not None and cache_start + len(slot_ids) > owned:
                slot_ids = slot_ids[: max(owned - cache_start, 0)]
            inner(self, cache, cache_start, slot_ids)

        return sync_new_kv_to_pool

    patching.override(RELEASE, releases)
    patching.override(SYNC, syncs)
    # Above mlx.pool-write, which postpones other requests' writes to the end of this one.
    patching.override(WRITE, writes)
