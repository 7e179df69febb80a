"""``mlx.first-buffer``: a request's first buffers fit its tokens, instead of 4096 tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....model.patching import Gated, Patching
from ..buffer_ending import Ending
from ..buffer_growth import growing
from ..device import CUDNN_ATTENTION, attends_by_cudnn
from ..references import ATTENTION, CONTIGUOUS, RUNNER

STEP = 256
"""Growth of mlx-lm's own caches, in tokens."""


def room_for(tokens: int) -> int:
    """Capacity for these tokens and the next one, in tokens."""
    return -(-(tokens + 1) // STEP) * STEP


def refuse_cudnn(core: Any) -> None:
    """Leave buffers to stock where the room in a buffer changes the bits of attention.

    MLX for CUDA decodes a single request with cuDNN over the whole buffer, with the request's
    length as a padding mask. How cuDNN adds up depends on the whole buffer's length
    (tests/benchmarks/results/mlx.md, by tests/benchmarks/mlx/kernels.py). MLX's own kernels don't
    see it.

    Args:
        core: ``mlx.core``.

    Raises:
        Gated: this process decodes with cuDNN.
    """
    if attends_by_cudnn(core):
        raise Gated(
            "cuDNN's attention gives other bits in a smaller buffer; "
            f"with {CUDNN_ATTENTION}=0 this patch runs"
        )


def install_contiguous(patching: Patching) -> None:
    """Serve 0.5.11 to 0.5.12.post1, whose batched decode does not grow a buffer."""
    _install_without_growth(patching, CONTIGUOUS)


def install_attention_without_growth(patching: Patching) -> None:
    """Serve 0.5.13 and 0.5.14, whose batched decode does not grow a buffer."""
    _install_without_growth(patching, ATTENTION)
    _collect_arrays(patching)


def install_attention(patching: Patching) -> None:
    """Serve releases from 0.5.15 on."""
    patching.anytime("stock's code grows a buffer of any size, in every kind of step")
    _install(patching, ATTENTION, None)
    _collect_arrays(patching)


def _collect_arrays(patching: Patching) -> None:
    cache_class = patching.get(ATTENTION)

    def make(inner: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def cache_arrays(cache: Any) -> list[Any]:
            """The arrays that a step evaluates.

            Stock collects them with a function that refers to itself. Buffers that were replaced by
            larger ones would therefore live until Python collects cycles.
            """
            return list(cache.state) if type(cache) is cache_class else inner(cache)

        return cache_arrays

    patching.override(f"{RUNNER}._cache_arrays", make)


def _install_without_growth(patching: Patching, cache: str) -> None:
    ending = Ending(*_core_and_class(patching, cache), patching.is_leaving)
    patching.drain(ending.is_idle, "the next prompt starts, which widens the requests' buffers")
    _install(patching, cache, ending)

    def make_prefill(inner: Callable[..., Any]) -> Callable[..., Any]:
        def prefill_start(self: Any, *args: Any, **kwargs: Any) -> Any:
            """Begin a prompt."""
            ending.begin(self)
            prefill = inner(self, *args, **kwargs)
            ending.note(self, prefill)
            return prefill

        return prefill_start

    patching.override(f"{cache}.write_token", growing)
    patching.override(f"{RUNNER}.prefill_start", make_prefill)


def _install(patching: Patching, cache: str, ending: Ending | None) -> None:
    ran = patching.ran
    core, cache_class = _core_and_class(patching, cache)
    refuse_cudnn(core)

    zeros: dict[tuple[Any, ...], Any] = {}

    def is_near() -> bool:
        return ending is not None and ending.is_near()

    def padded(array: Any, room: int) -> Any:
        """A prompt's K or V, (1, n_kv_heads, tokens, head_dim), with zeros behind it."""
        _, heads, tokens, head_dim = array.shape
        key = heads, head_dim, array.dtype
        if key not in zeros:
            zeros[key] = core.zeros((1, heads, STEP, head_dim), dtype=array.dtype)
        return core.concatenate([array, zeros[key][:, :, : room - tokens]], axis=2)

    def make_update(inner: Callable[..., Any]) -> Callable[..., Any]:
        def update_and_fetch(self: Any, keys: Any, values: Any) -> Any:
            """Append K and V; a prompt's first ones make the buffers.

            Stock fills buffers with zeros and writes the prompt over them. Where buffers have the
            room that fits, the zeros are a tenth of them, so the prompt is written once.
            """
            if ending is not None and not self.offset and not ending.is_near():
                _let_go([self], core, cache_class, STEP)  # since its last request it has stock's
            tokens, held = keys.shape[2], self.keys
            if (
                self.offset
                or tokens == 1
                or is_near()
                or keys.dtype != values.dtype
                or (held is not None and held.dtype != keys.dtype)
            ):
                return inner(self, keys, values)
            self.offset, self.max_seq_len = tokens, room_for(tokens)
            self.keys = padded(keys, self.max_seq_len)
            self.values = padded(values, self.max_seq_len)
            ran.seen = True
            return self.keys[:, :, :tokens], self.values[:, :, :tokens]

        return update_and_fetch

    def make_allocate(inner: Callable[..., None]) -> Callable[..., None]:
        def _allocate(self: Any, keys: Any) -> None:
            """Create the buffers at a first write; keys are (1, n_kv_heads, tokens, head_dim)."""
            if not is_near():
                self.max_seq_len = room_for(keys.shape[2])
                ran.seen = True
            inner(self, keys)

        return _allocate

    def make_grow(inner: Callable[..., None]) -> Callable[..., None]:
        def _grow(self: Any, required: int) -> None:
            """Grow by doubling for one token, as stock does; for a prompt, to what it needs.

            For a prompt in chunks, that includes the next chunk.
            """
            new = required - self.offset
            if new > 1 and not is_near():
                # Why this trick: stock doubles this number until it is enough, and copies as many
                # tokens as the offset says. So it creates buffers of exactly this capacity.
                self.max_seq_len = room_for(required + new if self.offset else required)
                ran.seen = True
            inner(self, required)

        return _grow

    def make_release(inner: Callable[..., None]) -> Callable[..., None]:
        def _release_cache(self: Any, cache: list[Any]) -> None:
            """Free the buffers of caches that the next request will reuse."""
            _let_go(cache, core, cache_class, STEP if ending is None else self._max_seq_len)
            inner(self, cache)

        return _release_cache

    patching.override(f"{cache}.update_and_fetch", make_update)
    patching.override(f"{cache}._allocate", make_allocate)
    patching.override(f"{cache}._grow", make_grow)
    patching.override(f"{RUNNER}._release_cache", make_release)


def _core_and_class(patching: Patching, cache: str) -> tuple[Any, Any]:
    core: Any = patching.module("mlx.core")
    return core, patching.get(cache)


def _let_go(caches: list[Any], core: Any, cache_class: Any, room: int) -> None:
    """Put empty buffers of `room` tokens into a finished request's caches.

    Stock gives the caches to another request. Where the buffers' dtype differs from the model's,
    that request is computed in the buffers' dtype, so the dtype stays. Zeros take no memory until
    they are used.
    """
    for cache in caches:
        if type(cache) is cache_class and cache.keys is not None:
            batch, heads, _, head_dim = cache.keys.shape
            shape = (batch, heads, room, head_dim)
            cache.keys = core.zeros(shape, dtype=cache.keys.dtype)
            cache.values = core.zeros(shape, dtype=cache.values.dtype)
            cache.offset, cache.max_seq_len = 0, room
