"""Copies a request's KV into the radix cache's pool, so that the request's buffers are freed."""

from ....model.declaration import Declaration, gains
from ....model.patch import of
from ..proven import PREFILL_AND_DECODE
from ..references import BATCHED_DECODE, MLX, RUNNER

BEFORE, SINCE = "… 0.5.12.post1", "0.5.13 …"
# The pool, and a layer's cache of a prefill whose prefix is in the pool; before and since.
KV_POOL = f"{MLX}.kv_cache.kv_pool:MlxKVPool"
ATTENTION_POOL = f"{MLX}.kv_cache.attention_kv_pool:MlxAttentionKVPool"
PREFIX = f"{MLX}.kv_cache.contiguous_cache:PoolBackedCache"
ATTENTION_PREFIX = f"{MLX}.kv_cache.attention_kv_cache:PoolBackedAttentionKVCache"

PATCH = Declaration(
    *(__name__, "0.5.11 … 0.5.23"),
    only_with=("mlx",),
    gain_with="prefix-cache -states -windows",
    proven_with=PREFILL_AND_DECODE,
    worth=gains(
        "on one H200, with only this patch, a prompt of 2,048 tokens takes 0.93 of stock's time",
        "mlx.md#prompt-2048-pool-write",
    ),
    anchors=(BATCHED_DECODE,),
    absent_because="before 0.5.11 MLX has no radix cache and so no pool",
    # What stock waits for between the pool's writers and readers.
    depends=of(RUNNER, "prefill_start", "extend_start", "_cache_with_pool_backed_attention"),
)
PATCH.on(BEFORE, depends=(f"{KV_POOL}.set_kv", PREFIX))
PATCH.on(SINCE, depends=(f"{ATTENTION_POOL}.set_kv", ATTENTION_PREFIX))


def of_pool(name: str) -> dict[str, str]:
    """A method of the pool, before and since."""
    return {BEFORE: f"{KV_POOL}.{name}", SINCE: f"{ATTENTION_POOL}.{name}"}
