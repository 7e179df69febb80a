"""``mlx.first-buffer``."""

from ....model.patch import Patch, Worth, of, variant
from ..proven import PREFILL_AND_DECODE
from ..references import ATTENTION, MLX, RUNNER

PATCH = Patch(
    id="mlx.first-buffer",
    only_with=("mlx",),
    gain_with="-states -windows",
    proven_with=PREFILL_AND_DECODE,
    summary="sizes a request's first KV buffers to its prompt, not to 4096 tokens",
    worth=Worth(
        "a",
        "after 4 prompts at once, a server on a CPU holds 3173 MB instead of 5755 MB",
        "tests/benchmarks/results/mlx.md",
        "server-at-once",
    ),
    # New in 0.5.15, where stock's batched decode grows a full buffer. Before, it loses tokens.
    anchors=(f"{MLX}.tp_worker:MlxTpModelWorker._route_extend_request",),
    absent_because="stock's batched decode does not grow a full buffer before 0.5.15",
    variants=(
        variant(
            *(__name__, "0.5.15 … 0.5.23"),
            # What allocates and grows a buffer, and what creates, reuses and releases a request's.
            targets=(
                *of(ATTENTION, "_allocate", "_grow"),
                *of(RUNNER, "_release_cache", "_cache_arrays"),
            ),
            depends=(
                *of(ATTENTION, "update_and_fetch", "write_token"),
                *of(RUNNER, "prefill_start", "_acquire_cache", "remove_request"),
                *of(RUNNER, "_materialize_pool_backed_attention", "clear"),
            ),
        ),
    ),
)
