"""KV of a batch in buffers that outlive the decode step: one for K and one for V of each layer.

A request is a row, padded on the right as stock pads. While a request's KV is in an arena, its
cache objects are `Row`s: stock's own objects under a subclass that answers from the arena, and
takes the KV back into a buffer of stock's kind before anything but a batched decode touches it.

`Rows` is what a row can do; `arena_moves` moves KV of many requests at once, and `arena_choice`
says which steps an arena serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

CUDNN_STEP = 256
"""MLX's CUDA backend decodes by cuDNN where the buffer's length is a multiple of this."""

STOCK_ROOM = 4096
"""Tokens that each request's buffers have room for in stock, at least."""

AT_MOST = 2
"""Times the room of stock's buffers that padded rows may take."""

_ROUND = 64
_ASIDE = 8


class Layer:
    """One layer's buffers.

    Attributes:
        arena: whose layer it is.
        caches: the rows' cache objects.
        held: how many of them still have their KV here; with the last one the buffers go.
        keys: (batch, n_kv_heads, capacity, head_dim).
        values: (batch, n_kv_heads, capacity, head_dim).
    """

    __slots__ = ("arena", "caches", "held", "keys", "values")

    def __init__(self, arena: Arena, caches: list[Any], keys: Any, values: Any) -> None:
        """The buffers hold the rows in the order of the caches."""
        self.arena, self.caches, self.keys, self.values = arena, caches, keys, values
        self.held = len(caches)


@dataclass(eq=False)
class Arena:
    """The buffers of one batch.

    Attributes:
        capacity: tokens that a row has room for.
        lengths: tokens of each row.
        intact: every row is still here.
        lasts: its batch was decoded twice or more.
        layers: by the index that a decode context gives to a layer; None where stock serves it.
    """

    capacity: int
    lengths: list[int]
    intact: bool = True
    lasts: bool = False
    layers: list[Layer | None] = field(default_factory=list)


def capacity_for(length: int, most: int) -> int:
    """Room for `length` tokens and some to come, and if it can be no more than `most`, in tokens.

    A buffer grows once in 64 tokens or more, by a sixteenth: the copies cost a constant per token.
    Its capacity is never a multiple of 256, for which MLX's CUDA backend would take another kernel
    than for the arrays that stock attends to.
    """
    capacity = -(-(length + _ROUND + length // 16) // _ROUND) * _ROUND
    capacity = max(length, min(capacity, most))
    if capacity % CUDNN_STEP:
        return capacity
    return capacity - _ASIDE if capacity - _ASIDE >= length else capacity + _ASIDE


class Rows:
    """What is done with one row of an arena: to read and write it, and to take it out.

    Attributes:
        core: ``mlx.core``.
        cache_class: stock's cache of one request and layer.
        row_class: its subclass for a cache whose KV is in an arena.
    """

    def __init__(self, core: Any, cache_class: Any) -> None:
        """`core` is ``mlx.core``."""
        self.core = core
        self.cache_class = cache_class
        # What stock's two slots hold while a cache is a row: its layer, and its number there.
        self._keys, self._values = cache_class.keys, cache_class.values
        self.row_class = _row_class(self, cache_class)

    def put(self, cache: Any, layer: Layer, number: int) -> None:
        """Make a cache a row of a layer, or give a row another place."""
        cache.__class__ = self.row_class
        self._keys.__set__(cache, layer)
        self._values.__set__(cache, number)

    def layer_if_row(self, cache: Any) -> Layer | None:
        """The layer that holds a row; None of a cache that is none."""
        return self.layer_of(cache) if type(cache) is self.row_class else None

    def empty(self, like: Any, room: int) -> Any:
        """A buffer of one request, not evaluated, (1, n_kv_heads, room, head_dim)."""
        return self.core.zeros((1, like.shape[1], room, like.shape[3]), dtype=like.dtype)

    def widened(self, array: Any, capacity: int) -> Any:
        """Rows with zeros behind them."""
        batch, heads, length, head_dim = array.shape
        if length == capacity:
            return array
        zeros = self.core.zeros((batch, heads, capacity - length, head_dim), dtype=array.dtype)
        return self.core.concatenate([array, zeros], axis=2)

    def layer_of(self, row: Any) -> Layer:
        """The layer that holds a row."""
        layer: Layer = self._keys.__get__(row)
        return layer

    def number_of(self, row: Any) -> int:
        """The row's place in its batch."""
        number: int = self._values.__get__(row)
        return number

    def of(self, row: Any, array: Any) -> Any:
        """A row's part, (1, n_kv_heads, capacity, head_dim), of its layer's K or V."""
        if array.shape[0] == 1:
            return array  # one node less in the graph of each read
        number = self.number_of(row)
        return array[number : number + 1]

    def append(self, row: Any, k: Any, v: Any) -> None:
        """Write one token of a row where it is; k and v are (1, n_kv_heads, 1, head_dim)."""
        layer, number, at = self.layer_of(row), self.number_of(row), row.offset
        layer.arena.intact = False
        layer.keys[number : number + 1, :, at : at + 1] = k
        layer.values[number : number + 1, :, at : at + 1] = v
        row.offset = at + 1

    def take_back(self, row: Any) -> None:
        """Give a row a buffer of its own again, of the size that it would have in stock."""
        layer, number, length = self.layer_of(row), self.number_of(row), row.offset
        tokens = (slice(number, number + 1), slice(None), slice(length))
        keys, values = layer.keys[tokens], layer.values[tokens]
        self.drop(row)
        if length:
            row.max_seq_len = room = doubled(row.max_seq_len, length)
            row.keys, row.values = self.widened(keys, room), self.widened(values, room)

    def take_all_back(self, caches: Sequence[Sequence[Any]]) -> None:
        """Take back every row, by layer and request: for a step that is left to stock."""
        for of_layer in caches:
            for cache in of_layer:
                if type(cache) is self.row_class:
                    self.take_back(cache)

    def drop(self, row: Any) -> None:
        """Forget a row's KV: a cache that stock fills anew, with tokens of the same dtype.

        Stock reuses the buffers, and where the pool's dtype is not the model's it is theirs that
        decides what the next request is computed in. Zeros take no memory before they are used.
        """
        layer = self.layer_of(row)
        layer.arena.intact = False
        row.__class__ = self.cache_class
        row.keys = self.empty(layer.keys, row.max_seq_len)
        row.values = self.empty(layer.values, row.max_seq_len)
        layer.held -= 1
        if not layer.held:
            layer.keys = layer.values = None  # at once, and not when Python collects cycles


def doubled(room: int, length: int) -> int:
    """As stock's buffers grow."""
    while room < length:
        room *= 2
    return room


def _row_class(rows: Rows, cache_class: Any) -> Any:
    """A subclass without fields of its own, so that a cache can change between the two."""
    held_keys, held_values = cache_class.keys, cache_class.values

    class Row(cache_class):  # type: ignore[misc]
        __slots__ = ()

        @property
        def keys(self) -> Any:
            return rows.of(self, rows.layer_of(self).keys)

        @keys.setter
        def keys(self, value: Any) -> None:
            rows.take_back(self)
            held_keys.__set__(self, value)

        @property
        def values(self) -> Any:
            return rows.of(self, rows.layer_of(self).values)

        @values.setter
        def values(self, value: Any) -> None:
            rows.take_back(self)
            held_values.__set__(self, value)

        @property
        def state(self) -> tuple[()]:
            """Nothing for ``mx.eval``: the tokens of a step follow from all that it writes.

            Stock gathers what it is given here by a function that refers to itself, so that the
            arrays would live on until Python collects cycles, and MLX would copy what it can only
            update in place if nothing else holds it.
            """
            return ()

        def write_token(self, k: Any, v: Any) -> None:
            """For a step that is left to stock; which then reads the tokens by ``get_kv``.

            MLX would copy a buffer for each row but one that is written and read so.
            """
            if self.offset < rows.layer_of(self).arena.capacity:
                rows.append(self, k, v)
            else:
                rows.take_back(self)
                self.write_token(k, v)

        def update_and_fetch(self, keys: Any, values: Any) -> Any:
            rows.take_back(self)
            return self.update_and_fetch(keys, values)

        def reset(self) -> None:
            rows.drop(self)
            self.reset()

        def leave_arena(self) -> None:
            """For whom keeps the cache: its KV back into a buffer of its own."""
            rows.take_back(self)

    return Row
