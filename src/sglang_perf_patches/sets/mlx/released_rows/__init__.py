"""``mlx.released-rows``."""

from ....model.patch import Marker, Patch, Worth, of, variant
from ..proven import WITH_CACHE
from ..references import MLX, RUNNER, STATES_SINCE

RELEASE = f"{MLX}.tp_worker:MlxTpModelWorker.prepare_for_kv_cache_release"
SYNC = f"{RUNNER}._sync_decode_kv_to_pool"
WRITE = f"{RUNNER}._sync_new_kv_to_pool"
_FLUSH = f"{RUNNER}.flush_all_decode_kv"
_REQUEST = "sglang.srt.managers.schedule_batch:Req"

PATCH = Patch(
    id="mlx.released-rows",
    only_with=("mlx", "prefix-cache"),
    proven_with=WITH_CACHE,
    summary="a finished reply's KV no longer overwrites a cached prefix",
    worth=Worth(
        "b",
        "stock writes an earlier reply's KV over a cached prefix, and answers the next hit wrongly",
    ),
    upstream=("sgl-project/sglang#33547",),
    built_in_since="0.5.22",
    markers=(Marker(definition=f"{RUNNER}.release_request_row"),),
    anchors=STATES_SINCE,
    absent_because="up to 0.5.16 the fault is rare (more requests than may run), and not repaired",
    variants=(
        variant(
            *(__name__, "0.5.17 … 0.5.21"),
            targets=(RELEASE, SYNC, WRITE),
            depends=(
                _FLUSH,
                *of(RUNNER, "remove_request", "prefill_start", "extend_start"),
                *of(_REQUEST, "effective_kv_committed_len", "owned_kv_len"),
            ),
        ),
    ),
)
