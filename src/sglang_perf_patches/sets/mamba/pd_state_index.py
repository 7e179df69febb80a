"""``mamba.pd-state-index``: a prefill server reads a request's state index from a copy on the host.

The table of these indices is copied when a request is allotted its row. It is needed when the
prefill is over: by then the copy has arrived, and the device may be busy with the next batch.
Only 0.5.23's Mooncake lets the scheduler go on without the page indices. Elsewhere it waits for
those in any case, so there the copy would cost more than it saves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...model.patching import Patching

_POOLS = "sglang.srt.mem_cache.memory_pool"
_POOL = f"{_POOLS}:HybridReqToTokenPool"
_MIXIN = "sglang.srt.disaggregation.prefill:SchedulerDisaggregationPrefillMixin"
_HELD = "_sglang_perf_patches_slots"


def install(patching: Patching) -> None:
    """Where the index is the last thing of a request that the scheduler waits for."""
    patching.anytime("a pool keeps the copy of its table, which only the patch's own code reads")
    patching.override(f"{_POOL}.alloc", _alloc)
    patching.override(f"{_MIXIN}._send_kv_chunk", _send(patching))


def _alloc(inner: Any) -> Any:
    """Nothing else writes rows of the table."""

    def alloc(self: Any, reqs: Any) -> Any:
        rows = inner(self, reqs)
        slots = vars(self).get(_HELD)
        if slots is not None and rows:
            slots.keep(rows, reqs)
        return rows

    return alloc


def _send(patching: Patching) -> Any:
    """The first request of a server is stock's; from then on copies are kept."""
    from . import host, state_slots

    pool_class = patching.get(_POOL)
    ran = patching.ran

    def make(inner: Any) -> Any:
        def send_kv_chunk(
            self: Any, req: Any, last_chunk: bool = False, end_idx: int | None = None
        ) -> Any:
            pool = self.req_to_token_pool
            # A subclass has other ids in its table, or another way to allot.
            if last_chunk and type(pool) is pool_class and _takes_late_pages(req):
                table = pool.req_index_to_mamba_index_mapping
                slots = vars(pool).get(_HELD)
                if slots is None and (not table.is_cuda or host.is_pinned(table.device)):
                    setattr(pool, _HELD, state_slots.Slots(table))
                elif slots is not None and slots.table is table:
                    self = state_slots.knowing(self, slots, req, ran)
            return inner(self, req, last_chunk, end_idx)

        return send_kv_chunk

    return make


def _takes_late_pages(req: Any) -> bool:
    """Whether the transfer itself waits for the page indices of a request.

    Otherwise the scheduler waits for them, and a copy of the state's index saves nothing.
    """
    sender = req.disagg_kv_sender
    if not getattr(sender, "supports_host_tensor_indices", False):
        return False
    return not sender.kv_mgr.enable_all_cp_ranks_for_transfer
