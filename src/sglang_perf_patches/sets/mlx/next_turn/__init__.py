"""``mlx.next-turn``."""

from ....model.patch import Patch, Variant
from ....model.releases import between
from ..proven import ANY, SAMPLING
from ..references import ATTENTION, BATCHED_DECODE, CONTIGUOUS, MLX, RUNNER

_ENDS = f"{RUNNER}.prefill_finalize", f"{RUNNER}.extend_finalize"
"""What commits a prompt."""


def _variant(
    first: str,
    last: str,
    install: str,
    cache: str,
    note: str = "",
    *,
    ends: tuple[str, ...] = (),
    depends: tuple[str, ...] = (),
) -> Variant:
    return Variant(
        releases=between(first, last),
        install=f"{__name__}.body:{install}",
        targets=(
            f"{RUNNER}.remove_request",
            f"{RUNNER}._release_cache",
            f"{RUNNER}._acquire_cache",
            f"{RUNNER}.prefill_start",
            *ends,
        ),
        depends=(
            f"{RUNNER}.clear",
            f"{RUNNER}._sync_new_kv_to_pool",
            f"{RUNNER}._sync_decode_kv_to_pool",
            *(() if ends else _ENDS[:1]),
            cache,
            f"{MLX}.kv_cache.attention_kv_cache:WindowedAttentionKVCache",
            *depends,
        ),
        note=note,
    )


_RECURRENT = "stock's code runs for models with a recurrent state"
_WINDOWS = "also with a sliding window, where stock prefills the whole conversation again"

PATCH = Patch(
    id="mlx.next-turn",
    # Without the radix cache no prompt continues a turn.
    only_with=("mlx",),
    proven_with=ANY | SAMPLING,
    kind="policy",
    summary="a finished request's caches wait for the next turn of its conversation",
    anchors=(BATCHED_DECODE,),
    absent_because="MLX has no radix cache here, and every turn is a new prompt",
    variants=(
        _variant("0.5.11", "0.5.12.post1", "install_contiguous", CONTIGUOUS),
        _variant("0.5.13", "0.5.14", "install_attention_without_growth", ATTENTION, _RECURRENT),
        _variant("0.5.15", "0.5.17", "install", ATTENTION, _RECURRENT),
        _variant(
            *("0.5.18", "0.5.21", "install_windows", ATTENTION),
            f"{_WINDOWS}; {_RECURRENT}",
            ends=_ENDS,
        ),
        _variant(
            *("0.5.22", "0.5.23", "install_rows", ATTENTION),
            f"{_WINDOWS}; {_RECURRENT}",
            ends=_ENDS,
            depends=(
                f"{RUNNER}.release_request_row",
                f"{MLX}.tp_worker:MlxTpModelWorker._cleanup_stale_rids",
                f"{MLX}.tp_worker:MlxTpModelWorker.prepare_for_kv_cache_release",
            ),
        ),
    ),
)
