"""A finished reply's KV no longer overwrites a cached prefix.

Decoded KV is written to the pool while its request has its row. Stock writes it before a later
prompt's prefill, or once the request has left the batch: to the slots in the row that the request
had. By then the row may be another request's. Decode steps that are chained own no slots at all:
the row has those of a request before it there.
"""

from ....model.declaration import Declaration, fixes
from ....model.patch import Marker, of
from ..proven import WITH_CACHE
from ..references import MLX, RUNNER, STATES_SINCE

PATCH = Declaration(
    *(__name__, "0.5.17 … 0.5.21"),
    only_with=("mlx", "prefix-cache"),
    proven_with=WITH_CACHE,
    worth=fixes(
        "stock writes an earlier reply's KV over a cached prefix, and answers the next hit wrongly"
    ),
    upstream=("sgl-project/sglang#33547",),
    built_in_since="0.5.22",
    markers=(Marker(definition=f"{RUNNER}.release_request_row"),),
    anchors=STATES_SINCE,
    absent_because="up to 0.5.16 the fault is rare (more requests than may run), and not repaired",
    depends=(
        *of(RUNNER, "flush_all_decode_kv", "remove_request", "prefill_start", "extend_start"),
        *of("sglang.srt.managers.schedule_batch:Req", "effective_kv_committed_len", "owned_kv_len"),
    ),
    anytime="what a released request has decoded is in the pool, and its row is forgotten",
)


@PATCH.setup()
def setup(patch):
    patch.state.owned = None  # tokens of the request that is being released


@PATCH.replaces(f"{MLX}.tp_worker:MlxTpModelWorker.prepare_for_kv_cache_release")
def prepare_for_kv_cache_release(self, req, *, patch, stock):
    runner = self._mlx_runner
    # Up to 0.5.20 the length has another name.
    length = getattr(req, "owned_kv_len", None) or req.effective_kv_committed_len
    patch.state.owned = length()
    try:
        stock(self, req)
        if not runner.disable_radix_cache:
            patch.ran.seen = True
            runner._sync_decode_kv_to_pool(req.rid)
    finally:
        patch.state.owned = None
    runner._req_pool_idx.pop(req.rid, None)


@PATCH.replaces(f"{RUNNER}._sync_decode_kv_to_pool")
def sync_decode_kv_to_pool(self, req_id, *, patch, stock):
    # No prompt reads what a request decodes before the request is released.
    if patch.state.owned is not None:
        stock(self, req_id)


# Above mlx.pool-write, which postpones other requests' writes to the end of this one.
@PATCH.replaces(f"{RUNNER}._sync_new_kv_to_pool")
def sync_new_kv_to_pool(self, cache, cache_start, slot_ids, *, patch, stock):
    owned = patch.state.owned
    if owned is not None and cache_start + len(slot_ids) > owned:
        slot_ids = slot_ids[: max(owned - cache_start, 0)]
    stock(self, cache, cache_start, slot_ids)
