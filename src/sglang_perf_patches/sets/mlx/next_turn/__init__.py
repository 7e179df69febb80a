"""``mlx.next-turn``."""

from ....model.patch import Patch, Variant
from ....model.releases import between
from ..proven import ANY, SAMPLING, UNREAD
from ..references import ATTENTION, MLX, RUNNER

_WINDOWED = f"{MLX}.kv_cache.attention_kv_cache:WindowedAttentionKVCache"


def _variant(first: str, last: str, install: str, *depends: str) -> Variant:
    return Variant(
        releases=between(first, last),
        install=f"{__name__}.body:{install}",
        targets=(
            f"{RUNNER}.remove_request",
            f"{RUNNER}._release_cache",
            f"{RUNNER}._acquire_cache",
            f"{RUNNER}.prefill_start",
            f"{RUNNER}.prefill_finalize",
            f"{RUNNER}.extend_finalize",
        ),
        depends=(
            f"{RUNNER}.clear",
            f"{RUNNER}._sync_new_kv_to_pool",
            f"{RUNNER}._sync_decode_kv_to_pool",
            ATTENTION,
            _WINDOWED,
            *depends,
        ),
        note="stock's code runs for models without a sliding window",
    )


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
        _variant("0.5.18", "0.5.21", "install"),
        _variant(
            *("0.5.22", "0.5.23", "install_rows"),
            f"{RUNNER}.release_request_row",
            f"{MLX}.tp_worker:MlxTpModelWorker._cleanup_stale_rids",
            f"{MLX}.tp_worker:MlxTpModelWorker.prepare_for_kv_cache_release",
        ),
    ),
)
