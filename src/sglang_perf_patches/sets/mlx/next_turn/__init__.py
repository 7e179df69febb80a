"""Keeps a finished request's caches for the next turn of its conversation."""

from ....model.declaration import Declaration
from ....model.patch import of
from ..proven import ANY, SAMPLING, UNREAD
from ..references import ATTENTION, MLX, RUNNER

PATCH = Declaration(
    *(__name__, "0.5.22 … 0.5.23"),
    # Without the radix cache no prompt continues a turn.
    only_with=("mlx", "windows", "prefix-cache"),
    proven_with=ANY | SAMPLING | UNREAD,
    anchors=(f"{RUNNER}.release_request_row",),
    absent_because="up to 0.5.21 MLX does not tell the runner when a request has ended",
    depends=(
        *of(RUNNER, "clear", "_sync_new_kv_to_pool", "_sync_decode_kv_to_pool"),
        *(ATTENTION, f"{RUNNER}.release_request_row"),
        f"{MLX}.kv_cache.attention_kv_cache:WindowedAttentionKVCache",
        *of(f"{MLX}.tp_worker:MlxTpModelWorker", "_cleanup_stale_rids"),
        f"{MLX}.tp_worker:MlxTpModelWorker.prepare_for_kv_cache_release",
    ),
    anytime="kept turns are no requests; they are freed with the patch",
)
PATCH.on("", note="stock's code runs for models without a sliding window")
