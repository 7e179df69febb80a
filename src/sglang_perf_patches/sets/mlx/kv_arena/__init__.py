"""A batch's KV stays in one buffer per layer across decode steps."""

from ....model.declaration import Declaration, gains
from ....model.patch import of
from ..proven import PREFILL_AND_DECODE
from ..references import ATTENTION, BATCHED_DECODE, CONTIGUOUS, CORE, RUNNER, USERS

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

_STEP = "_sglang_perf_patches_arena"


@PATCH.setup("… 0.5.12.post1")
def setup_contiguous(patch):
    from .body import setup

    setup(patch, CONTIGUOUS, "layer_caches")


@PATCH.setup("0.5.13 …")
def setup_attention(patch):
    from .body import setup

    setup(patch, ATTENTION, "attention_layer_caches")


@PATCH.setup()
def drain(patch):
    # Stock would write and read row by row, and MLX copies a shared buffer each time. In the middle
    # of a step the layers' lengths would differ.
    arenas = patch.state.arenas
    patch.drain(lambda: not arenas.has_any(), "no request's KV is in a batch's buffers")


@PATCH.replaces(
    {
        "… 0.5.12.post1": f"{CONTIGUOUS}.write_token",
        "0.5.13 … 0.5.14": f"{ATTENTION}.write_token",
    }
)
def write_token(self, k, v, *, stock):
    """Grow a full buffer, then write; k and v are (1, n_kv_heads, 1, head_dim)."""
    # In these releases the batched decode loses what it writes past the end: a ValueError ends the
    # step, or if all lengths of the batch are equal, nothing is raised and the logits are wrong.
    if self.offset >= self.max_seq_len:
        self._grow(self.offset + 1)
    stock(self, k, v)


@PATCH.replaces(f"{RUNNER}.decode_batch_start_chained")
def decode_batch_start_chained(self, prev, *, patch, stock):
    """Build a step before the last one is read; a trial tells such steps from others."""
    patch.state.is_chained = True
    try:
        return stock(self, prev)
    finally:
        patch.state.is_chained = False


@PATCH.replaces(f"{RUNNER}._release_cache")
def release_cache(self, cache, *, patch, stock):
    """Take the caches out of the arena before stock keeps them for another request."""
    arenas = patch.state.arenas
    for row, _ in arenas.among([cache]):
        arenas.drop(row)
    stock(self, cache)


@PATCH.makes(CORE)
def core(patch, stock):
    from .step import core_of_steps

    return core_of_steps(stock)


@PATCH.makes(BATCHED_DECODE)
def decode(patch, stock):
    begin, ran = patch.state.begin, patch.ran

    def batched_decode(self, x, ctx):
        """Decode one layer from the batch's arena; x and the result are (batch, 1, hidden)."""
        known = vars(ctx)
        try:
            step = known[_STEP]
        except KeyError:
            step = known[_STEP] = begin(ctx)
        if step is None or not step.has(self):
            return stock(self, x, ctx)
        if step.trial is None:
            ran.seen = True
            result = step.decode(stock, self, x)
        else:
            result = stock(self, x, ctx)
            step.trial.note(result, step.decode(stock, self, x))
        step.has_served()
        return result

    return batched_decode
