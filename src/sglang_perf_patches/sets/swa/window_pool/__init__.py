"""``swa.window-pool``."""

from ....model.patch import Patch, of, variant
from ..proven import POOLED
from ..references import ALLOCATOR, EVICTS

CONTEXT = "sglang.srt.runtime_context"
_CONFIG = "sglang.srt.configs.model_config"
DERIVES = f"{_CONFIG}:ModelConfig._derive_hybrid_model"
_MODELS = "sglang.srt.models"
_ATTENTION = "sglang.srt.layers.attention"
_EXECUTOR = "sglang.srt.model_executor"
_SETUP = f"{_EXECUTOR}.model_runner_components"

_KINDS_OF_LAYERS = (
    *of(_MODELS, "gemma2:Gemma2Attention.__init__", "gemma3_causal:Gemma3Attention.__init__"),
    *of(_MODELS, "exaone4:Exaone4Attention.__init__", "olmo2:Olmo2Attention.__init__"),
)
_POOL = (
    *of(
        "sglang.srt.mem_cache.swa_memory_pool:SWAKVPool",
        *("__init__", "set_kv_buffer", "translate_loc_from_full_to_swa"),
    ),
    f"{ALLOCATOR}.free_swa",
    f"{_EXECUTOR}.pool_configurator:create_memory_pool_configurator",
    f"{_SETUP}.layer_setup:resolve_layer_indices",
    f"{_SETUP}.load_model_utils:resolve_sliding_window_size",
)
_METADATA = ("__init__", "init_forward_metadata", "forward_extend", "forward_decode")
_BACKENDS = (
    *of(f"{_ATTENTION}.triton_backend:TritonAttnBackend", *_METADATA),
    *of(f"{_ATTENTION}.flashattention_backend:FlashAttentionBackend", *_METADATA),
)

PATCH = Patch(
    id="swa.window-pool",
    only_with=("poolless-windows", "windows", "torch", "known-pool-backend", "one-backend"),
    proven_with=POOLED,
    kind="policy",
    summary="Gemma 2 and 3, EXAONE 4 and Olmo 3 get a sliding-window pool, for text only",
    # Older schedulers are told their ranks one by one.
    anchors=(f"{CONTEXT}:SpawnRanks",),
    absent_because="tested only on 0.5.21 and later",
    variants=(
        variant(
            *(__name__, "0.5.21 … 0.5.23"),
            targets=(DERIVES,),
            depends=(
                f"{_CONFIG}:is_hybrid_swa_model",
                f"{_CONFIG}:get_hybrid_layer_ids",
                f"{CONTEXT}:attention_backends",
                *_KINDS_OF_LAYERS,
                *_POOL,
                *_BACKENDS,
                *EVICTS,
            ),
            awaits=(CONTEXT,),
        ),
    ),
)
