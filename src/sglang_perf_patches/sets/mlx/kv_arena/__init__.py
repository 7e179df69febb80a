"""``mlx.kv-arena``."""

from ....model.patch import Patch, Worth, of, variant
from ..proven import PREFILL_AND_DECODE
from ..references import ATTENTION, BATCHED_DECODE, CONTIGUOUS, CORE, RUNNER, USERS

RELEASE = f"{RUNNER}._release_cache"
CHAINED = f"{RUNNER}.decode_batch_start_chained"

# Beyond its targets, everything that passes a request's caches on.
_DEPENDS = (
    *USERS,
    *of(RUNNER, "_acquire_cache", "decode_batch", "decode_batch_start", "prefill_start"),
    *of(RUNNER, "extend_start", "_sync_new_kv_to_pool", "_sync_decode_kv_to_pool"),
    *of(RUNNER, "remove_request", "_cache_state_arrays", "_decode_with_batched_attention"),
    *of(RUNNER, "_decode_with_hybrid_batching", "_build_batched_decode_context"),
    *of(RUNNER, "_materialize_pool_backed_attention", "_cache_arrays", "clear"),
)

_TARGETS = (CORE, BATCHED_DECODE, RELEASE, CHAINED)

PATCH = Patch(
    id="mlx.kv-arena",
    only_with=("mlx", "several-requests"),
    gain_with="-states -windows",
    proven_with=PREFILL_AND_DECODE,
    summary="a batch's KV stays in one buffer per layer across decode steps",
    worth=Worth(
        "a",
        "with 16 clients, a token takes 34.9 and 37.6 ms instead of 107.8 and 101.9 ms",
        "tests/benchmarks/results/mlx.md",
        "warm-unique-16",
    ),
    anchors=(BATCHED_DECODE,),
    absent_because="MLX has no batched decode context before 0.5.11 (#22416)",
    requires=("mlx.pool-write",),
    variants=(
        variant(
            *(__name__, "0.5.11 … 0.5.12.post1", "install_contiguous"),
            targets=(*_TARGETS, f"{CONTIGUOUS}.write_token"),
            depends=(*_DEPENDS, CONTIGUOUS),
            note="supports every layer. A batched decode also continues past a buffer's end",
        ),
        variant(
            *(__name__, "0.5.13 … 0.5.14", "install_attention_without_growth"),
            targets=(*_TARGETS, f"{ATTENTION}.write_token"),
            depends=(*_DEPENDS, ATTENTION),
            note="supports the layers of 0.5.15. A batched decode also continues past a buffer's "
            "end, as in stock from 0.5.15 on",
        ),
        variant(
            *(__name__, "0.5.15 … 0.5.17", "install_attention"),
            targets=_TARGETS,
            depends=(*_DEPENDS, ATTENTION),
            note="supports every attention layer, also gated ones and those of hybrid models. "
            "With the fused RoPE kernel stock's code runs",
        ),
        variant(
            *(__name__, "0.5.18 … 0.5.23", "install_attention"),
            targets=_TARGETS,
            depends=(*_DEPENDS, ATTENTION),
            note="supports every attention layer without a window, also with sinks or gates and in "
            "hybrid models; with a sliding window or the fused RoPE kernel stock's code runs",
        ),
    ),
)
