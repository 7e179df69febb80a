"""References to stock's definitions that several patches of this set name."""

MLX = "sglang.srt.hardware_backend.mlx"
ENVIRONMENT = "sglang.srt.environ"
RUNNER = f"{MLX}.model_runner:MlxModelRunner"

# The module of the batched decode: its context, and the wrapper around each attention layer.
WRAPPER = f"{MLX}.kv_cache.attention_wrapper"
CORE = f"{WRAPPER}:mx"  # that module's name for ``mlx.core``
USERS = (
    f"{WRAPPER}:MLXAttentionWrapper",
    f"{WRAPPER}:BatchedDecodeContext",
    f"{WRAPPER}:get_context",
)
"""Everything in that module that uses ``mlx.core`` through the name."""

BATCHED_DECODE = f"{WRAPPER}:MLXAttentionWrapper._batched_decode"

# The cache of one request and layer: up to 0.5.12.post1, and from 0.5.13 on.
CONTIGUOUS = f"{MLX}.kv_cache.contiguous_cache:ContiguousKVCache"
ATTENTION = f"{MLX}.kv_cache.attention_kv_cache:ContiguousAttentionKVCache"

_PARTS = "sglang.srt.mem_cache.unified_cache.components"
STOCKS = f"{_PARTS}.mamba:MambaComponent"
STOCKS_BEFORE = f"{_PARTS}.mamba_component:MambaComponent"
"""Stock's owner of states in the radix cache: from 0.5.20 on, and from 0.5.17 on."""

STATES_SINCE = (f"{STOCKS}.__init__", f"{STOCKS_BEFORE}.__init__")
"""Present from 0.5.17 on. Before, hybrid models fail on MLX for other reasons."""
