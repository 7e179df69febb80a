"""``mlx.next-turn``."""

from ....model.patch import Patch, of, variant
from ..proven import ANY, SAMPLING, UNREAD
from ..references import ATTENTION, MLX, RUNNER

_WINDOWED = f"{MLX}.kv_cache.attention_kv_cache:WindowedAttentionKVCache"


_SHARED = {
    "targets": (
        *of(RUNNER, "remove_request", "_release_cache", "_acquire_cache", "prefill_start"),
        *of(RUNNER, "prefill_finalize", "extend_finalize"),
    ),
    "note": "stock's code runs for models without a sliding window",
}
_DEPENDS = (
    *of(RUNNER, "clear", "_sync_new_kv_to_pool", "_sync_decode_kv_to_pool"),
    *(ATTENTION, _WINDOWED),
)
_WORKER = f"{MLX}.tp_worker:MlxTpModelWorker"

PATCH = Patch(
    id="mlx.next-turn",
    # Without the radix cache no prompt continues a turn.
    only_with=("mlx",),
    proven_with=ANY | SAMPLING | UNREAD,
    kind="policy",
    summary="keeps a finished request's caches for the next turn of its conversation",
    anchors=(_WINDOWED,),
    absent_because="MLX supports no sliding window here, and full attention gains nothing",
    variants=(
        variant(__name__, "0.5.18 … 0.5.21", depends=_DEPENDS, **_SHARED),
        variant(
            *(__name__, "0.5.22 … 0.5.23", "install_rows"),
            depends=(
                *(*_DEPENDS, f"{RUNNER}.release_request_row"),
                *of(_WORKER, "_cleanup_stale_rids", "prepare_for_kv_cache_release"),
            ),
            **_SHARED,
        ),
    ),
)
