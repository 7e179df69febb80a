"""Sizes a request's first KV buffers to its prompt, not to 4096 tokens."""

from ....model.declaration import Declaration, gains
from ....model.patch import of
from ....model.patching import Gated
from ..device import CUDNN_ATTENTION, attends_by_cudnn
from ..proven import PREFILL_AND_DECODE
from ..references import ATTENTION, MLX, RUNNER

PATCH = Declaration(
    *(__name__, "0.5.15 … 0.5.23"),
    only_with=("mlx",),
    gain_with="-states -windows",
    proven_with=PREFILL_AND_DECODE,
    worth=gains(
        "after 4 prompts at once, a server on a CPU holds 3173 MB instead of 5755 MB",
        "mlx.md#server-at-once",
    ),
    # New in 0.5.15, where stock's batched decode grows a full buffer. Before, it loses tokens.
    anchors=(f"{MLX}.tp_worker:MlxTpModelWorker._route_extend_request",),
    absent_because="stock's batched decode does not grow a full buffer before 0.5.15",
    depends=(
        *of(ATTENTION, "update_and_fetch", "write_token"),
        *of(RUNNER, "prefill_start", "_acquire_cache", "remove_request"),
        *of(RUNNER, "_materialize_pool_backed_attention", "clear"),
    ),
    anytime="stock's code grows a buffer of any size, in every kind of step",
)

STEP = 256  # growth of mlx-lm's own caches, in tokens


def room_for(tokens: int) -> int:
    """Capacity for these tokens and the next one, in tokens."""
    return -(-(tokens + 1) // STEP) * STEP


@PATCH.setup()
def setup(patch):
    patch.state.core, patch.state.kind = patch.module("mlx.core"), patch.get(ATTENTION)
    # MLX for CUDA decodes a single request with cuDNN over the whole buffer, with the request's
    # length as a padding mask. How cuDNN adds up depends on the whole buffer's length
    # (tests/benchmarks/mlx/kernels.py measures it). MLX's own kernels don't see it.
    if attends_by_cudnn(patch.state.core):
        raise Gated(
            "cuDNN's attention rounds differently in a smaller buffer; "
            f"with {CUDNN_ATTENTION}=0 this patch runs"
        )


@PATCH.replaces(f"{ATTENTION}._allocate")
def _allocate(self, keys, *, patch, stock):
    """Create the buffers at a first write; keys are (1, n_kv_heads, tokens, head_dim)."""
    self.max_seq_len = room_for(keys.shape[2])
    patch.ran.seen = True
    stock(self, keys)


@PATCH.replaces(f"{ATTENTION}._grow")
def _grow(self, required, *, patch, stock):
    """Grow by doubling for one token, as stock does; for a prompt, to what it needs."""
    new = required - self.offset
    if new > 1:
        # Stock doubles this number until it is enough, and copies as many tokens as the offset
        # says. So it creates buffers of exactly this capacity, which includes the next chunk.
        self.max_seq_len = room_for(required + new if self.offset else required)
        patch.ran.seen = True
    stock(self, required)


@PATCH.replaces(f"{RUNNER}._release_cache")
def _release_cache(self, cache, *, patch, stock):
    """Free the buffers of caches that the next request will reuse."""
    core = patch.state.core
    for each in cache:
        if type(each) is patch.state.kind and each.keys is not None:
            # The next request is computed in the buffers' dtype, also where the model's differs,
            # so the dtype stays. Zeros take no memory until they are used.
            batch, heads, _, head_dim = each.keys.shape
            shape = (batch, heads, STEP, head_dim)
            each.keys = core.zeros(shape, dtype=each.keys.dtype)
            each.values = core.zeros(shape, dtype=each.values.dtype)
            each.offset, each.max_seq_len = 0, STEP
    stock(self, cache)


@PATCH.replaces(f"{RUNNER}._cache_arrays")
def _cache_arrays(cache, *, patch, stock):
    # Stock collects what a step evaluates with a function that refers to itself. Buffers that were
    # replaced by larger ones would therefore live until Python collects cycles.
    return list(cache.state) if type(cache) is patch.state.kind else stock(cache)
