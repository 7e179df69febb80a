"""``mlx.next-turn``."""

from ....model.patch import Patch, Variant
from ....model.releases import between
from ..proven import ANY, SAMPLING
from ..references import ATTENTION, BATCHED_DECODE, CONTIGUOUS, MLX, RUNNER


def _variant(first: str, last: str, install: str, cache: str, note: str = "") -> Variant:
    return Variant(
        releases=between(first, last),
        install=f"{__name__}.body:{install}",
        targets=(
            f"{RUNNER}.remove_request",
            f"{RUNNER}._release_cache",
            f"{RUNNER}._acquire_cache",
            f"{RUNNER}.prefill_start",
        ),
        depends=(
            f"{RUNNER}.clear",
            f"{RUNNER}._sync_new_kv_to_pool",
            f"{RUNNER}._sync_decode_kv_to_pool",
            f"{RUNNER}.prefill_finalize",
            cache,
            f"{MLX}.kv_cache.attention_kv_cache:WindowedAttentionKVCache",
        ),
        note=note,
    )


_RECURRENT = "stock's code runs for models with a recurrent state"

PATCH = Patch(
    id="mlx.next-turn",
    # Without the radix cache no prompt continues a turn.
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
            *("0.5.18", "0.5.23", "install", ATTENTION),
            "also with a sliding window, where stock prefills the whole conversation again; "
            + _RECURRENT,
        ),
    ),
)
