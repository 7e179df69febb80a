"""``mlx.pool-write``."""

from ....model.patch import Patch, Variant, Worth, of, variant
from ..proven import PREFILL_AND_DECODE
from ..references import BATCHED_DECODE, MLX, RUNNER

KV_POOL = f"{MLX}.kv_cache.kv_pool:MlxKVPool"
"""The pool, up to 0.5.12.post1."""

ATTENTION_POOL = f"{MLX}.kv_cache.attention_kv_pool:MlxAttentionKVPool"
"""The same pool, from 0.5.13 on."""

PREFIX = f"{MLX}.kv_cache.contiguous_cache:PoolBackedCache"
"""A layer's cache of a prefill whose prefix is in the pool, up to 0.5.12.post1."""

ATTENTION_PREFIX = f"{MLX}.kv_cache.attention_kv_cache:PoolBackedAttentionKVCache"
"""The same cache, from 0.5.13 on."""


def _variant(spans: str, install: str, pool: str, prefix: str) -> Variant:
    """The pool's writers and readers, and what stock waits for in between."""
    return variant(
        *(__name__, spans, install),
        targets=(
            *of(pool, "__init__", "set_kv_all_layers", "get_kv", "clear"),
            f"{prefix}.update_and_fetch",
            *of(RUNNER, "prefill_finalize", "extend_finalize", "decode_batch_finalize"),
            *of(RUNNER, "_sync_new_kv_to_pool", "_sync_decode_kv_to_pool"),
        ),
        depends=(
            *of(RUNNER, "prefill_start", "extend_start", "_cache_with_pool_backed_attention"),
            *(f"{pool}.set_kv", prefix),
        ),
    )


PATCH = Patch(
    id="mlx.pool-write",
    only_with=("mlx",),
    gain_with="prefix-cache -states -windows",
    proven_with=PREFILL_AND_DECODE,
    summary="copies a request's KV into the radix cache's pool, so that its own buffers are freed",
    worth=Worth(
        "a",
        "on one H200, with only this patch, a prompt of 2,048 tokens takes 0.93 of stock's time",
        "tests/benchmarks/results/mlx.md",
        "prompt-2048-pool-write",
    ),
    anchors=(BATCHED_DECODE,),
    absent_because="before 0.5.11 MLX has no radix cache and so no pool",
    variants=(
        _variant("0.5.11 … 0.5.12.post1", "install_contiguous", KV_POOL, PREFIX),
        _variant("0.5.13 … 0.5.23", "install_attention", ATTENTION_POOL, ATTENTION_PREFIX),
    ),
)
