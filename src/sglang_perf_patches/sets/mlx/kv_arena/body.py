"""``mlx.kv-arena``: a batch's KV stays together from one decode step to the next.

Stock's own method of the attention wrapper still runs, once per layer. A `_LayerStep` replaces the
layer's attention module and its requests' caches. It writes the new token of the whole batch and
returns K and V of the whole batch, so stock has nothing to write, pad or concatenate per request.

A decode step, in the order of calls on which this relies:

| stock calls | what answers |
| --- | --- |
| the wrapper of the first layer with buffers | `_begin` chooses an arena, or None: all stock's |
| the wrapper of each such layer, in any order | `_Step.decode`, which runs stock's method |
| what that method calls, in this order | a `_LayerStep`: see its table |
| ``concatenate`` of K, then of V | `_Core`: the array is there |
| after the last layer | `_Step.has_served`: the rows are a token longer |

A layer that attends to a window is stock's. An exception in between leaves the rows as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any

from ..buffer_growth import growing
from ..device import has_cuda
from ..references import ATTENTION, BATCHED_DECODE, CONTIGUOUS, CORE
from . import CHAINED, RELEASE
from .arena import CUDNN_STEP, Arena, Layer, Rows
from .choice import COUNTS, Choice
from .moves import Moves
from .padding import PaddingAndMask
from .trial import Trial, is_proven

if TYPE_CHECKING:
    from ....model.patching import Patching

_STEP = "_sglang_perf_patches_arena"


def install_contiguous(patching: Patching) -> None:
    """Serve 0.5.11 to 0.5.12.post1, whose batched decode does not grow a buffer."""
    _install(patching, CONTIGUOUS, "layer_caches")
    patching.override(f"{CONTIGUOUS}.write_token", growing)


def install_attention_without_growth(patching: Patching) -> None:
    """Serve 0.5.13 and 0.5.14, whose batched decode does not grow a buffer."""
    _install(patching, ATTENTION, "attention_layer_caches")
    patching.override(f"{ATTENTION}.write_token", growing)


def install_attention(patching: Patching) -> None:
    """Serve releases from 0.5.15 on."""
    _install(patching, ATTENTION, "attention_layer_caches")


def _install(patching: Patching, cache_class: str, field: str) -> None:
    core: Any = patching.module("mlx.core")
    rows = Rows(core, patching.get(cache_class))
    moves = Moves(rows)
    choice = Choice(rows, moves)
    trial = None if is_proven(core) else Trial(rows, choice, moves, patching.gate)
    ran = patching.ran
    # Stock would write and read row by row, and MLX copies a shared buffer each time. In the
    # middle of a step the layers' lengths would differ.
    patching.drain(lambda: not rows.has_any(), "no request's KV is in a batch's buffers")

    def make_decode(inner: Callable[..., Any]) -> Callable[..., Any]:
        def batched_decode(self: Any, x: Any, ctx: Any) -> Any:
            """Decode one layer from the batch's arena; x and the result are (batch, 1, hidden)."""
            known = vars(ctx)
            step: _Step | _StepApart | None
            try:
                step = known[_STEP]
            except KeyError:
                step = known[_STEP] = _begin(choice, trial, core, ctx, field)
            if step is None or not step.has(self):
                return inner(self, x, ctx)
            if step.trial is None:
                ran.seen = True
                result = step.decode(inner, self, x)
            else:
                result = inner(self, x, ctx)
                step.trial.note(result, step.decode(inner, self, x))
            step.has_served()
            return result

        return batched_decode

    def make_chained(inner: Callable[..., Any]) -> Callable[..., Any]:
        def decode_batch_start_chained(self: Any, prev: Any) -> Any:
            """Build a step before the last one is read; a trial tells such steps from others."""
            if trial is None:
                return inner(self, prev)
            trial.is_chained = True
            try:
                return inner(self, prev)
            finally:
                trial.is_chained = False

        return decode_batch_start_chained

    def make_release(inner: Callable[..., None]) -> Callable[..., None]:
        def release_cache(self: Any, cache: list[Any]) -> None:
            """Take the caches out of the arena before stock keeps them for another request."""
            _release(rows, cache)
            inner(self, cache)

        return release_cache

    patching.override(CORE, lambda inner: _Core(inner, patching))
    patching.override(BATCHED_DECODE, make_decode)
    patching.override(RELEASE, make_release)
    patching.override(CHAINED, make_chained)


def _begin(
    choice: Choice, trial: Trial | None, core: Any, ctx: Any, field: str
) -> _Step | _StepApart | None:
    """At a step's first layer, choose an arena with room for a token; None for stock."""
    caches, lengths = getattr(ctx, field), list(ctx.seq_lens)
    has_rope_kernel = getattr(getattr(ctx, "aot", None), "rope", None) is not None
    if ctx.batch_size < 2 or has_rope_kernel:
        # Stock attends to a single request's buffer directly; its length selects the kernel.
        choice.leave(caches)
        return None
    if trial is not None and trial.is_needed(lengths):
        tried = trial.begin(caches, lengths)
        if tried is None:
            return None
        if tried.arena is None:
            return _StepApart(ctx, tried.caches, field, trial)
        return _Step(core, ctx, tried.arena, field, trial)
    arena = choice.arena_for(caches, lengths)
    if arena is None:
        return None
    COUNTS["steps"] += 1
    return _Step(core, ctx, arena, field)


class _Step:
    """One decode step of a batch in its arena.

    Attributes:
        lengths: tokens of each request before the step.
        longest: tokens of the longest request after the step.
        trial: compares the step with stock's; None where the arena serves the step.
    """

    def __init__(
        self, core: Any, ctx: Any, arena: Arena, field: str, trial: Trial | None = None
    ) -> None:
        self._core, self._arena, self._field, self.trial = core, arena, field, trial
        self._left = sum(layer is not None for layer in arena.layers)
        self._context = copy(ctx)
        self._index = getattr(ctx, "attention_pool_index_by_layer", None)
        self.lengths = arena.lengths
        self.longest = max(self.lengths) + 1
        self._equal = min(self.lengths) + 1 == self.longest
        self._indices_by_shape: dict[tuple[int, ...], Any] = {}
        # Why this trick: stock reads each request's padding from its context, and an arena's rows
        # are padded already.
        unpadded = [0] * ctx.batch_size
        if hasattr(ctx, "decode_padding"):
            self._context._padding_by_window = {None: (unpadded, ctx.decode_padding(None)[1])}
        else:
            self._context.pad_sizes = unpadded

    def has(self, wrapper: Any) -> bool:
        """Whether a wrapper's layer has buffers; one that attends to a window has none."""
        if getattr(wrapper, "_window_size", None) is not None:
            return False
        return self._arena.layers[_index_of(wrapper, self._index)] is not None

    def decode(self, inner: Callable[..., Any], wrapper: Any, x: Any) -> Any:
        """Stock's method of a layer on its buffers; x and the result are (batch, 1, hidden)."""
        index = _index_of(wrapper, self._index)
        stands_in = _LayerStep(wrapper._inner, self, self._arena.layers[index])
        # Stock's context without padding, and with one object as every cache of the layer.
        setattr(self._context, self._field, {index: [stands_in] * len(self.lengths)})
        try:
            return inner(_WrapperOf(wrapper, stands_in), x, self._context)
        finally:
            # Break the cycle: it would hold the buffers, and MLX copies a buffer held elsewhere.
            setattr(self._context, self._field, {})
            stands_in.forget()

    def write(self, layer: Layer, keys: Any, values: Any) -> tuple[Any, Any]:
        """Append a token to each row.

        Args:
            layer: the layer that owns the buffers.
            keys: (batch, n_kv_heads, 1, head_dim).
            values: (batch, n_kv_heads, 1, head_dim).

        Returns:
            K and V to attend to, (batch, n_kv_heads, longest, head_dim).
        """
        if self._equal:
            at = self.longest - 1
            layer.keys[:, :, at : at + 1] = keys
            layer.values[:, :, at : at + 1] = values
        else:
            put = self._core.put_along_axis
            layer.keys = put(layer.keys, self._indices(keys.shape), keys, axis=2)
            layer.values = put(layer.values, self._indices(values.shape), values, axis=2)
        attended = layer.keys[:, :, : self.longest], layer.values[:, :, : self.longest]
        if self._equal and self.longest % CUDNN_STEP == 0 and has_cuda(self._core):
            # For arrays of exactly this length, such as stock's, MLX uses cuDNN's kernel.
            return self._core.contiguous(attended[0]), self._core.contiguous(attended[1])
        return attended

    def _indices(self, shape: tuple[int, ...]) -> Any:
        """Each row's write position, int32, for an update of this shape; shared by all layers."""
        if shape not in self._indices_by_shape:
            lengths = self._core.array(self.lengths, dtype=self._core.int32)
            self._indices_by_shape[shape] = self._core.broadcast_to(
                lengths[:, None, None, None], shape
            )
        return self._indices_by_shape[shape]

    def has_served(self) -> None:
        """Count a served layer; after the last one the step's tokens count as part of the rows.

        If an exception ends the step earlier, it has written only beyond the end of its rows. The
        next attempt overwrites that.
        """
        COUNTS["layers"] += 1
        self._left -= 1
        if not self._left:
            if self.trial is not None:
                self.trial.end_step()
            self._arena.lengths = [length + 1 for length in self.lengths]
            for layer in self._arena.layers:
                if layer is not None:
                    for cache in layer.caches:
                        cache.offset += 1


class _StepApart:
    """A step that stock's code computes twice: from its own caches, and from rows set apart.

    Attributes:
        trial: compares the two.
    """

    def __init__(self, ctx: Any, caches: list[list[Any]], field: str, trial: Trial) -> None:
        """`caches` are the rows, by layer, then by request; other caches where there are none."""
        self.trial = trial
        self._index = getattr(ctx, "attention_pool_index_by_layer", None)
        self._has_rows = [hasattr(each[0], "leave_arena") for each in caches]
        self._left = sum(self._has_rows)
        self._context = copy(ctx)
        setattr(self._context, field, caches)

    def has(self, wrapper: Any) -> bool:
        """Whether a wrapper's layer has rows."""
        return self._has_rows[_index_of(wrapper, self._index)]

    def decode(self, inner: Callable[..., Any], wrapper: Any, x: Any) -> Any:
        """Stock's method of a layer on the rows; x and the result are (batch, 1, hidden)."""
        return inner(wrapper, x, self._context)

    def has_served(self) -> None:
        """Count a layer; the step ends with the last one."""
        self._left -= 1
        if not self._left:
            self.trial.end_step()


def _index_of(wrapper: Any, index: Any) -> int:
    """A layer's index among the attention layers."""
    number: int = wrapper._layer_idx
    return number if index is None else index[number]


class _WrapperOf:
    """Stock's attention wrapper of a layer, around another attention module."""

    def __init__(self, wrapper: Any, module: Any) -> None:
        vars(self).update(vars(wrapper), _inner=module)


class _LayerStep:
    """Replaces a layer's attention module, and each request's cache of that layer.

    What stock's method does in one layer of a step, and what happens here:

    | stock | here |
    | --- | --- |
    | computes and normalizes queries and keys | the module's own, through `__getattr__` |
    | computes the values | `v_proj` keeps them and returns this object |
    | reshapes and transposes the values | `reshape` and `transpose` return this object |
    | rotates the queries | the first `rope` call returns the module's result |
    | rotates the keys | the second writes K and V of the batch, and returns this object |
    | slices each request's K and V | `__getitem__` returns this object |
    | writes them into its cache | `write_token` does nothing, they are written |
    | reads its K and V, pads them | `get_kv` returns two `_OfAll`; the padding is 0, see `_Step` |
    | concatenates all K, then all V | `_Core.concatenate` returns the array of the first `_OfAll` |
    | attends, projects | stock's own code, on the arena's arrays |
    """

    def __init__(self, module: Any, step: _Step, layer: Layer | None) -> None:
        self._module = module
        self._step: Any = step
        self._layer: Any = layer
        self._rotated = False
        self._values: Any = None
        self._attended: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def v_proj(self, x: Any) -> Any:
        self._values = self._module.v_proj(x)
        return self

    def rope(self, array: Any, offset: Any) -> Any:
        """Rotate the queries, then the keys, (batch, heads, 1, head_dim)."""
        rotated = self._module.rope(array, offset=offset)
        if not self._rotated:
            self._rotated = True
            return rotated
        values = self._values.reshape(*rotated.shape[:3], -1)
        keys, values = self._step.write(self._layer, rotated, values)
        self._attended = _OfAll(keys), _OfAll(values)
        return self

    def forget(self) -> None:
        """Drop all references: see `_Step.decode`."""
        self._step = self._layer = self._values = self._attended = None

    def reshape(self, *_: Any) -> Any:
        return self

    def transpose(self, *_: Any) -> Any:
        return self

    def __getitem__(self, _: Any) -> Any:
        return self

    def write_token(self, *_: Any) -> None:
        """Do nothing: the tokens of the whole batch are written already."""

    def get_kv(self, *_: Any) -> tuple[_OfAll, _OfAll]:
        """K and V of all requests, returned for each request."""
        attended: tuple[_OfAll, _OfAll] = self._attended
        return attended


class _OfAll:
    """K or V of all requests; replaces one request's."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array


class _Core(PaddingAndMask):
    """``mlx.core`` with padding and mask made once a step, for layers that stock serves."""

    def concatenate(self, arrays: Any, axis: int = 0) -> Any:
        """Concatenate K or V of the requests; an arena's layer has them in one array already.

        A single array is returned as it is, as MLX does, without a call of MLX. So a single
        request's step takes no longer to build than in stock.
        """
        first = arrays[0]
        if type(first) is _OfAll:
            return first.array
        return first if len(arrays) == 1 else self._inner.concatenate(arrays, axis=axis)


def _release(rows: Rows, cache: list[Any]) -> None:
    for each in cache:
        if type(each) is rows.row_class:
            rows.drop(each)
