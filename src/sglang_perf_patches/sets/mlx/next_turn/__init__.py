"""``mlx.next-turn``."""

from ....model.patch import Patch, of, variant
from ..proven import ANY, SAMPLING, UNREAD
from ..references import ATTENTION, MLX, RUNNER

_WINDOWED = f"{MLX}.kv_cache.attention_kv_cache:WindowedAttentionKVCache"
_WORKER = f"{MLX}.tp_worker:MlxTpModelWorker"

PATCH = Patch(
    id="mlx.next-turn",
    # Without the radix cache no prompt continues a turn.
    only_with=("mlx", "windows", "prefix-cache"),
    proven_with=ANY | SAMPLING | UNREAD,
    kind="policy",
    summary="keeps a finished request's caches for the next turn of its conversation",
    anchors=(f"{RUNNER}.release_request_row",),
    absent_because="up to 0.5.21 MLX does not tell the runner when a request has ended",
    variants=(
        variant(
            *(__name__, "0.5.22 … 0.5.23"),
            targets=(
                *of(RUNNER, "remove_request", "_release_cache", "_acquire_cache", "prefill_start"),
                *of(RUNNER, "prefill_finalize", "extend_finalize"),
            ),
            depends=(
                *of(RUNNER, "clear", "_sync_new_kv_to_pool", "_sync_decode_kv_to_pool"),
                *(ATTENTION, _WINDOWED, f"{RUNNER}.release_request_row"),
                *of(_WORKER, "_cleanup_stale_rids", "prepare_for_kv_cache_release"),
            ),
            note="stock's code runs for models without a sliding window",
        ),
    ),
)
