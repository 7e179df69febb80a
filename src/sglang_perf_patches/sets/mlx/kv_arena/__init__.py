"""A batch's KV stays in one buffer per layer across decode steps."""

from ....model.declaration import Declaration, gains
from ....model.patch import of
from ..proven import PREFILL_AND_DECODE
from ..references import ATTENTION, BATCHED_DECODE, CONTIGUOUS, RUNNER, USERS

PATCH = Declaration(
    *(__name__, "0.5.11 … 0.5.23"),
    only_with=("mlx", "several-requests"),
    gain_with="-states -windows",
    proven_with=PREFILL_AND_DECODE,
    worth=gains(
        "with 16 clients, a token takes 34.9 and 37.6 ms instead of 107.8 and 101.9 ms",
        "mlx.md#warm-unique-16",
    ),
    anchors=(BATCHED_DECODE,),
    absent_because="MLX has no batched decode context before 0.5.11 (#22416)",
    requires=("mlx.pool-write",),
    # Beyond what it changes, everything that passes a request's caches on.
    depends=(
        *USERS,
        *of(RUNNER, "_acquire_cache", "decode_batch", "decode_batch_start", "prefill_start"),
        *of(RUNNER, "extend_start", "_sync_new_kv_to_pool", "_sync_decode_kv_to_pool"),
        *of(RUNNER, "remove_request", "_cache_state_arrays", "_decode_with_batched_attention"),
        *of(RUNNER, "_decode_with_hybrid_batching", "_build_batched_decode_context"),
        *of(RUNNER, "_materialize_pool_backed_attention", "_cache_arrays", "clear"),
    ),
)
PATCH.on(
    "… 0.5.12.post1",
    depends=(CONTIGUOUS,),
    note="supports every layer. A batched decode also continues past a buffer's end",
)
PATCH.on("0.5.13 …", depends=(ATTENTION,))
PATCH.on(
    "0.5.13 … 0.5.14",
    note="supports the layers of 0.5.15. A batched decode also continues past a buffer's "
    "end, as in stock from 0.5.15 on",
)
PATCH.on(
    "0.5.15 … 0.5.17",
    note="supports every attention layer, also gated ones and those of hybrid models. "
    "With the fused RoPE kernel stock's code runs",
)
PATCH.on(
    "0.5.18 …",
    note="supports every attention layer without a window, also with sinks or gates and in "
    "hybrid models; with a sliding window or the fused RoPE kernel stock's code runs",
)
