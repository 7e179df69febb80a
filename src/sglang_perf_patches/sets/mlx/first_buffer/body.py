"""``mlx.first-buffer``: a request's first buffers fit its tokens, instead of 4096 tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....model.patching import Gated, Patching, replaces
from ..device import CUDNN_ATTENTION, attends_by_cudnn
from ..references import ATTENTION, RUNNER

STEP = 256
"""Growth of mlx-lm's own caches, in tokens."""


def room_for(tokens: int) -> int:
    """Capacity for these tokens and the next one, in tokens."""
    return -(-(tokens + 1) // STEP) * STEP


def install(patching: Patching) -> None:
    """Make, grow and free the buffers of ``ContiguousAttentionKVCache`` by what they hold.

    Raises:
        Gated: this process decodes with cuDNN.
    """
    patching.anytime("stock's code grows a buffer of any size, in every kind of step")
    ran = patching.ran
    core: Any = patching.module("mlx.core")
    cache_class: Any = patching.get(ATTENTION)
    # MLX for CUDA decodes a single request with cuDNN over the whole buffer, with the request's
    # length as a padding mask. How cuDNN adds up depends on the whole buffer's length
    # (tests/benchmarks/results/mlx.md, by tests/benchmarks/mlx/kernels.py). MLX's own kernels don't
    # see it.
    if attends_by_cudnn(core):
        raise Gated(
            "cuDNN's attention rounds differently in a smaller buffer; "
            f"with {CUDNN_ATTENTION}=0 this patch runs"
        )

    @replaces(patching, f"{ATTENTION}._allocate")
    def _allocate(self: Any, keys: Any, *, inner: Any) -> None:
        """Create the buffers at a first write; keys are (1, n_kv_heads, tokens, head_dim)."""
        self.max_seq_len = room_for(keys.shape[2])
        ran.seen = True
        inner(self, keys)

    @replaces(patching, f"{ATTENTION}._grow")
    def _grow(self: Any, required: int, *, inner: Any) -> None:
        """Grow by doubling for one token, as stock does; for a prompt, to what it needs.

        For a prompt in chunks, that includes the next chunk.
        """
        new = required - self.offset
        if new > 1:
            # Why this trick: stock doubles this number until it is enough, and copies as many
            # tokens as the offset says. So it creates buffers of exactly this capacity.
            self.max_seq_len = room_for(required + new if self.offset else required)
            ran.seen = True
        inner(self, required)

    @replaces(patching, f"{RUNNER}._release_cache")
    def _release_cache(self: Any, cache: list[Any], *, inner: Any) -> None:
        """Free the buffers of caches that the next request will reuse."""
        for each in cache:
            if type(each) is cache_class and each.keys is not None:
                # Stock gives the cache to another request. Where the buffers' dtype differs from
                # the model's, that request is computed in the buffers' dtype, so the dtype stays.
                # Zeros take no memory until they are used.
                batch, heads, _, head_dim = each.keys.shape
                shape = (batch, heads, STEP, head_dim)
                each.keys = core.zeros(shape, dtype=each.keys.dtype)
                each.values = core.zeros(shape, dtype=each.values.dtype)
                each.offset, each.max_seq_len = 0, STEP
        inner(self, cache)

    def make_arrays(inner: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def cache_arrays(cache: Any) -> list[Any]:
            """The arrays that a step evaluates.

            Stock collects them with a function that refers to itself. Buffers that were replaced by
            larger ones would therefore live until Python collects cycles.
            """
            return list(cache.state) if type(cache) is cache_class else inner(cache)

        return cache_arrays

    patching.override(f"{RUNNER}._cache_arrays", make_arrays)
