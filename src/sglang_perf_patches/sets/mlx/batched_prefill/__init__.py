"""Computes waiting prompts of similar length in one pass."""

from ....model.declaration import Declaration
from ....model.patch import of
from ..proven import PREFILL_AND_DECODE
from ..references import ATTENTION, MLX, RUNNER, WRAPPER

FORWARD = f"{RUNNER}._forward_lazy_token"
"""Calls the model for one prompt, or for a part of it."""

PATCH = Declaration(
    *(__name__, "0.5.18 … 0.5.23"),
    only_with=("mlx", "several-requests"),
    proven_with=PREFILL_AND_DECODE,
    anchors=(FORWARD,),
    absent_because="this release calls the model from several places",
    depends=(
        *of(RUNNER, "_extract_logits", "_materialize_pool_backed_attention"),
        *of(RUNNER, "_cache_with_pool_backed_attention", "cache_state_arrays"),
        *of(RUNNER, "_new_cache_skeleton", "_restore_auxiliary_state"),
        *of(RUNNER, "_select_auxiliary_state_track_len", "_store_tracked_auxiliary_state"),
        *of(MLX, "model_runner:MlxPendingPrefill", "kv_cache.layout:MlxModelCacheLayout"),
        f"{WRAPPER}:MLXAttentionWrapper.__call__",
        *of(MLX, "tp_worker:MlxLaunch", "sampling:lazy_logprob_arrays"),
        f"{MLX}.kv_cache.attention_kv_cache:make_attention_mask",
        f"{MLX}.kv_cache.attention_kv_cache:PoolBackedAttentionKVCache",
        f"{MLX}.kv_cache.attention_kv_cache:WindowedAttentionKVCache",
        f"{MLX}.kv_cache.attention_kv_pool:MlxAttentionKVPool.get_kv",
        ATTENTION,
    ),
    awaits=(f"{MLX}.sampling", f"{MLX}.kv_cache.attention_kv_cache"),
    anytime="a batch's prompts are noted and launched within one call",
)
