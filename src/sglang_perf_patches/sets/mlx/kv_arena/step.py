"""One decode step of a batch: in its arena, or in those of its groups.

It relies on the order of stock's calls: one of `decode` for each layer with buffers, each followed
by `has_served`, in any order of layers, and no layer twice. Within `decode` stock calls a
`_LayerStep` in the order of its table: K is rotated, and so written, before anything reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ..device import has_cuda
from .arena import COUNTS, CUDNN_STEP, Arena, Groups
from .arena_self_check import ArenaSelfCheck


class Writer:
    """Writes a step's tokens into an arena."""

    def __init__(self, core: Any, arena: Arena) -> None:
        self._core, self.arena = core, arena
        self.lengths = arena.lengths  # before the step
        self.longest = max(self.lengths) + 1  # after it
        self.is_equal = min(self.lengths) + 1 == self.longest
        self._indices_by_shape: dict[tuple[int, ...], Any] = {}

    def write(self, index: int, keys: Any, values: Any) -> tuple[Any, Any]:
        """Append a token's K and V, (batch, n_kv_heads, 1, head_dim), in a layer with buffers.

        Returns those to attend to, (batch, n_kv_heads, longest, head_dim).
        """
        layer = self.arena.layers[index]
        assert layer is not None
        # Both write in place, because nothing else holds the buffers: see `Step.decode`.
        if self.is_equal:
            at = self.longest - 1
            layer.keys[:, :, at : at + 1] = keys
            layer.values[:, :, at : at + 1] = values
        else:
            put = self._core.put_along_axis
            layer.keys = put(layer.keys, self._indices(keys.shape), keys, axis=2)
            layer.values = put(layer.values, self._indices(values.shape), values, axis=2)
        attended = layer.keys[:, :, : self.longest], layer.values[:, :, : self.longest]
        if self.is_equal and self.longest % CUDNN_STEP == 0 and has_cuda(self._core):
            # For arrays of exactly this length, such as stock's, MLX uses cuDNN's kernel.
            return self._core.contiguous(attended[0]), self._core.contiguous(attended[1])
        return attended

    def _indices(self, shape: tuple[int, ...]) -> Any:
        """Each row's write position, int32, for an update of this shape; shared by all layers."""
        if shape not in self._indices_by_shape:
            lengths = self._core.array(self.lengths, dtype=self._core.int32)
            at = self._core.broadcast_to(lengths[:, None, None, None], shape)
            self._indices_by_shape[shape] = at
        return self._indices_by_shape[shape]

    def end_step(self) -> None:
        """Make each row a token longer."""
        # Once a step, after its last layer. If each layer counted at once and a later one raised,
        # their lengths would differ, and then no step could join them again.
        self.arena.lengths = [length + 1 for length in self.lengths]
        for layer in filter(None, self.arena.layers):
            for cache in layer.caches:
                cache.offset += 1


class Step:
    """One decode step of a batch: each group has an arena. A `trial` compares it with stock's."""

    def __init__(
        self, groups: Groups, arenas: list[Arena], core, ctx, field, trial: ArenaSelfCheck | None
    ) -> None:
        """Set up the step of a context that has the caches in `field`."""
        self._core, self._field, self.trial = core, field, trial
        self._has_buffers = [layer is not None for layer in arenas[0].layers]
        self._left = sum(self._has_buffers)
        self._index = getattr(ctx, "attention_pool_index_by_layer", None)
        self._writers = [Writer(core, arena) for arena in arenas]
        self._rows = [_selection(core, group) for group in groups]  # of the batch, in each arena
        order = [row for group in groups for row in group]
        is_sorted = order == sorted(order)
        self._back = None if is_sorted else core.array([order.index(row) for row in sorted(order)])
        self._masks: dict[int, tuple[Any, list[Any]]] = {}
        self._context = copy(ctx)
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
        return self._has_buffers[self._index_of(wrapper)]

    def decode(self, inner: Callable[..., Any], wrapper: Any, x: Any) -> Any:
        """Stock's method of a layer on its buffers; x and the result are (batch, 1, hidden)."""
        index = self._index_of(wrapper)
        stands_in = _LayerStep(wrapper._inner, self, index)
        # Stock asks each request's cache in turn. One object answers for all of them: its first
        # `rope` call is the queries', its second writes K and V of the whole batch.
        setattr(self._context, self._field, {index: [stands_in] * self._context.batch_size})
        around = SimpleNamespace(**vars(wrapper) | {"_inner": stands_in})
        try:
            result = inner(around, x, self._context)
        finally:
            # Break the cycle: it would hold the buffers, and MLX copies a buffer held elsewhere.
            setattr(self._context, self._field, {})
        COUNTS["layers"] += 1
        return result

    def write(self, index: int, keys: Any, values: Any) -> tuple[Any, Any]:
        """Append a token to each row; see `Writer.write`."""
        if len(self._writers) == 1:
            return self._writers[0].write(index, keys, values)
        written = [
            writer.write(index, keys[rows], values[rows])
            for writer, rows in zip(self._writers, self._rows, strict=True)
        ]
        return _InGroups([k for k, _ in written], self), _InGroups([v for _, v in written], self)

    def has_served(self) -> None:
        """Count a served layer; after the last one the step's tokens count as part of the rows."""
        # An exception before that leaves tokens only beyond the rows' ends, to be overwritten.
        self._left -= 1
        if not self._left:
            if self.trial is not None:
                self.trial.end_step()
            for writer in self._writers:
                writer.end_step()

    def attend(self, attend, queries, keys, values, *, mask, **kwargs) -> Any:
        """Have MLX's function attend to each group by itself.

        Queries and the result are (batch, n_heads, 1, head_dim), each group's keys and values
        (rows, n_kv_heads, its longest, head_dim), and the mask (batch, 1, 1, the longest of all).
        """
        groups = zip(self._rows, self._masks_of(mask), keys, values, strict=True)
        attended = [attend(queries[rows], k, v, mask=its, **kwargs) for rows, its, k, v in groups]
        together = self._core.concatenate(attended, axis=0)
        return together if self._back is None else together[self._back]

    def _index_of(self, wrapper: Any) -> int:
        """A layer's index among the attention layers."""
        number: int = wrapper._layer_idx
        return number if self._index is None else self._index[number]

    def _masks_of(self, mask: Any) -> list[Any]:
        """Each group's part of a mask, which the step's layers share; None where all is kept."""
        if id(mask) not in self._masks:
            parts = [
                None if writer.is_equal else mask[rows][..., : writer.longest]
                for writer, rows in zip(self._writers, self._rows, strict=True)
            ]
            self._masks[id(mask)] = mask, parts  # the mask lives on, so its id stays its own
        return self._masks[id(mask)][1]


def _selection(core: Any, group: Sequence[int]) -> Any:
    """Selects a group's rows: a slice, which copies nothing, where they follow each other."""
    first, last = group[0], group[-1]
    return slice(first, last + 1) if last - first + 1 == len(group) else core.array(group)


class _LayerStep:
    """Replaces a layer's attention module, and each request's cache of that layer.

    | what stock's method does in one layer of a step | what happens here |
    | --- | --- |
    | computes and normalizes queries and keys | the module's own, through `__getattr__` |
    | computes the values | `v_proj` keeps them and returns this object |
    | reshapes and transposes the values | `reshape` and `transpose` return this object |
    | rotates the queries | the first `rope` call returns the module's result |
    | rotates the keys | the second writes K and V of the batch, and returns this object |
    | slices each request's K and V | `__getitem__` returns this object |
    | writes them into its cache | `write_token` does nothing, they are written |
    | reads its K and V, pads them | `get_kv` returns two `_OfAll`; the padding is 0, see `Step` |
    | concatenates all K, then all V | our ``concatenate`` returns the first `_OfAll`'s array |
    | attends, projects | stock's own code, on the arena's arrays |
    """

    def __init__(self, module: Any, step: Step, index: int) -> None:
        self._module, self._step, self._index = module, step, index
        self._rotated = False
        self._values: Any = None
        self._attended: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def v_proj(self, x: Any) -> Any:
        self._values = self._module.v_proj(x)
        return self

    def rope(self, array: Any, offset: Any) -> Any:
        rotated = self._module.rope(array, offset=offset)
        if not self._rotated:
            self._rotated = True
            return rotated
        values = self._values.reshape(*rotated.shape[:3], -1)
        keys, values = self._step.write(self._index, rotated, values)
        self._attended = _OfAll(keys), _OfAll(values)
        return self

    def reshape(self, *_: Any) -> Any:
        return self

    transpose = __getitem__ = reshape

    def write_token(self, *_: Any) -> None:
        pass

    def get_kv(self, *_: Any) -> Any:
        return self._attended


@dataclass(slots=True)
class _OfAll:
    """K or V of all requests; replaces one request's."""

    array: Any


@dataclass(slots=True)
class _InGroups:
    """K or V of all requests: an array for each group, to which `Step.attend` attends."""

    arrays: Sequence[Any]
    step: Step


class _Forwarding:
    """A module of MLX's, except for some of its functions."""

    def __init__(self, inner: Any, **own: Any) -> None:
        vars(self).update(own, _inner=inner)

    def __getattr__(self, name: str) -> Any:
        # Look a name up once, since a layer uses some names per request.
        value = getattr(self._inner, name)
        setattr(self, name, value)
        return value


def core_of_steps(inner: Any) -> Any:
    """``mlx.core``, which finds K and V of a layer in the arrays of its arenas."""

    def attended(queries: Any, keys: Any, values: Any, **kwargs: Any) -> Any:
        attend = inner.fast.scaled_dot_product_attention
        if type(keys) is _InGroups:
            return keys.step.attend(attend, queries, keys.arrays, values.arrays, **kwargs)
        return attend(queries, keys, values, **kwargs)

    def concatenate(arrays: Any, axis: int = 0) -> Any:
        first = arrays[0]
        if type(first) is _OfAll:
            return first.array
        # As MLX does it, without a call: a single request's step takes no longer to build.
        return first if len(arrays) == 1 else inner.concatenate(arrays, axis=axis)

    fast = _Forwarding(inner.fast, scaled_dot_product_attention=attended)
    return _Forwarding(inner, fast=fast, concatenate=concatenate)
