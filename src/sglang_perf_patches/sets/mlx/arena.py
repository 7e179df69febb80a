"""KV of a batch in buffers that outlive the decode step: one for K and one for V of each layer.

A request is a row, padded on the right as stock pads. While a request's KV is in an arena, its
cache objects are `Row`s: stock's own objects under a subclass that answers from the arena, and
takes the KV back into a buffer of stock's kind before anything but a batched decode touches it.
"""

from __future__ import annotations

import gc
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
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
        came_again: its batch was decoded twice or more.
        layers: by the index that a decode context gives to a layer; None where stock serves it.
    """

    capacity: int
    lengths: list[int]
    intact: bool = True
    came_again: bool = False
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
    """Makes and dissolves arenas of one cache class.

    Attributes:
        cache_class: stock's cache of one request and layer.
        row_class: its subclass for a cache whose KV is in an arena.
    """

    def __init__(self, core: Any, cache_class: Any) -> None:
        """`core` is ``mlx.core``."""
        self._core = core
        self.cache_class = cache_class
        # What stock's two slots hold while a cache is a row: its layer, and its number there.
        self._keys, self._values = cache_class.keys, cache_class.values
        self.row_class = _row_class(self, cache_class)
        self._expected: tuple[list[int], list[int]] = [], []

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

    def arena_of(self, caches: Sequence[Sequence[Any]], lengths: list[int]) -> Arena | None:
        """The arena that holds just these rows, by layer and request, with these lengths."""
        for of_layer in caches:
            first = of_layer[0]
            if type(first) is self.row_class:
                arena = self.layer_of(first).arena
                same = arena.intact and arena.lengths == lengths
                if same and len(arena.layers) == len(caches):
                    pairs = zip(arena.layers, caches, strict=True)
                    if all(layer is None or layer.caches == of_layer for layer, of_layer in pairs):
                        return arena
                return None
        return None

    def came_before(self, caches: Sequence[Sequence[Any]], lengths: list[int]) -> bool:
        """Whether the last step for which this was asked was one of the same batch."""
        # By identity alone: whatever is kept here would outlive its request.
        batch, before = [id(cache) for cache in caches[0]], self._expected
        self._expected = batch, [length + 1 for length in lengths]
        return before == (batch, lengths)

    def comes_of_lasting(self, caches: Sequence[Sequence[Any]]) -> bool:
        """Whether rows of a batch that came again and again lie together in this one."""
        shared = self._shared(caches)
        return bool(shared) and all(layer.arena.came_again for layer in shared)

    def set_apart(self, caches: Sequence[Sequence[Any]]) -> bool:
        """Give rows that lie together a buffer each, as long as the one that they shared.

        Stock writes and reads row by row, for which MLX would copy a shared buffer each time.

        Returns:
            whether there were any.
        """
        found = False
        for of_layer in caches:
            for old in self._shared([of_layer]):
                found, old.arena.intact = True, False
                apart = Arena(old.arena.capacity, [], intact=False)
                made: list[Any] = []
                for row in [each for each in old.caches if self._layer_if_row(each) is old]:
                    number = self.number_of(row)
                    keys, values = (
                        self._core.contiguous(array[number : number + 1])
                        for array in (old.keys, old.values)
                    )
                    self._keys.__set__(row, Layer(apart, [row], keys, values))
                    self._values.__set__(row, 0)
                    made += [keys, values]
                self._core.eval(made)
                old.keys = old.values = None
        return found

    def _shared(self, caches: Sequence[Sequence[Any]]) -> list[Layer]:
        """The layers that hold two or more rows of the first attention layer that has rows."""
        for of_layer in caches:
            rows = Counter(filter(None, map(self._layer_if_row, of_layer)))
            if rows:
                return [layer for layer, count in rows.items() if count > 1]
        return []

    def can_hold(self, caches: Sequence[Any], lengths: Sequence[int]) -> bool:
        """Whether one layer's caches can share a buffer: of stock's class, filled, of one shape."""
        kinds = set()
        for cache, length in zip(caches, lengths, strict=True):
            if type(cache) is self.row_class:
                layer = self.layer_of(cache)
                keys, values = layer.keys, layer.values
            elif type(cache) is self.cache_class:
                keys, values = cache.keys, cache.values
            else:
                return False
            if keys is None or cache.offset != length:
                return False
            kinds.add((keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, values.dtype))
        return len(kinds) == 1

    def room_in_stock(self, caches: Sequence[Sequence[Any]], lengths: Sequence[int]) -> int:
        """Tokens that stock's buffers of a layer have room for after the next token, together.

        Whatever mlx.first-buffer makes of them.
        """
        for of_layer in caches:
            if isinstance(of_layer[0], self.cache_class):
                return sum(_doubled(STOCK_ROOM, length + 1) for length in lengths)
        return 0

    def capacity_for(self, caches: Sequence[Sequence[Any]], length: int, most: int) -> int:
        """As the function of that name, or what rows have now if that is not much different.

        Rows of the same capacity are copied once, others twice.
        """
        wanted = capacity_for(length, most)
        for of_layer in caches:
            rows = [layer for layer in map(self._layer_if_row, of_layer) if layer is not None]
            if rows:
                held = max(layer.arena.capacity for layer in rows)
                return held if length <= held <= min(most, wanted + wanted // 4) else wanted
        return wanted

    def build(self, caches: Sequence[Sequence[Any]], lengths: list[int], capacity: int) -> Arena:
        """Move KV into a new arena, from stock's buffers and from other arenas.

        Layers whose caches can't share a buffer stay with stock. Rows that are left behind in an
        arena go back to stock's buffers.
        """
        arena = Arena(capacity, list(lengths))
        # Stock's evaluation of a prefill has left its buffers in cycles, see `Row.state`.
        gc.collect(1)
        can_hold = [self.can_hold(of_layer, lengths) for of_layer in caches]
        # Old and new buffers add up until the new ones are evaluated: K of a layer, then V, or as
        # many at once as take no more than stock would hold beyond what is held here, in tokens.
        in_stock = self.room_in_stock(caches, lengths)
        spare = sum(in_stock - self._room(each) for each in itertools.compress(caches, can_hold))
        cost = len(lengths) * capacity
        waiting: list[Any] = []
        made = replaced = 0
        for of_layer, holds in zip(caches, can_hold, strict=True):
            if not holds:
                arena.layers.append(None)
                continue
            if made + cost > spare:
                self._core.eval(waiting)
                waiting.clear()
                spare, made, replaced = spare + replaced - made, 0, 0
            made, replaced = made + cost, replaced + self._room(of_layer)
            layer = self._layer(arena, of_layer)
            arena.layers.append(layer)
            waiting += [layer.keys, layer.values]
            if made > spare:
                self._core.eval(layer.keys)
        self._core.eval(waiting)
        return arena

    def _room(self, caches: Sequence[Any]) -> int:
        """Tokens that the buffers of one layer's caches have room for, together."""
        layers = map(self._layer_if_row, caches)
        return sum(
            cache.max_seq_len if layer is None else layer.arena.capacity
            for cache, layer in zip(caches, layers, strict=True)
        )

    def _layer(self, arena: Arena, caches: Sequence[Any]) -> Layer:
        """One layer, not evaluated."""
        self._take_back_but(caches)
        runs = list(self._runs(caches))
        layer = Layer(arena, list(caches), None, None)
        for name in ("keys", "values"):
            parts = [(getattr(source, name)[rows], length) for source, rows, length in runs]
            setattr(layer, name, self._joined(parts, arena.capacity))
        for source, _, _ in runs:
            source.keys = source.values = None
        for number, cache in enumerate(caches):
            cache.__class__ = self.row_class
            self._keys.__set__(cache, layer)
            self._values.__set__(cache, number)
        return layer

    def _take_back_but(self, caches: Sequence[Any]) -> None:
        """Take back what these leave behind in their arenas."""
        stay = {id(cache) for cache in caches}
        taken = []
        for old in {layer for layer in map(self._layer_if_row, caches) if layer is not None}:
            old.arena.intact = False
            for cache in old.caches:
                if self._layer_if_row(cache) is old and id(cache) not in stay:
                    self.take_back(cache)
                    taken += [cache.keys, cache.values]
        self._core.eval(taken)

    def _layer_if_row(self, cache: Any) -> Layer | None:
        return self.layer_of(cache) if type(cache) is self.row_class else None

    def grow(self, arena: Arena, capacity: int) -> None:
        """Make room for more tokens in each row, layer by layer."""
        for layer in arena.layers:
            if layer is not None:
                layer.keys = self._widened(layer.keys, capacity)
                layer.values = self._widened(layer.values, capacity)
                self._core.eval(layer.keys, layer.values)
        arena.capacity = capacity

    def take_back(self, row: Any) -> None:
        """Give a row a buffer of its own again, of the size that it would have in stock."""
        layer, number, length = self.layer_of(row), self.number_of(row), row.offset
        tokens = (slice(number, number + 1), slice(None), slice(length))
        keys, values = layer.keys[tokens], layer.values[tokens]
        self.drop(row)
        if length:
            row.max_seq_len = room = _doubled(row.max_seq_len, length)
            row.keys, row.values = self._widened(keys, room), self._widened(values, room)

    def take_all_back(self, caches: Sequence[Sequence[Any]]) -> None:
        """Take back every row, by layer and request: for a step that is left to stock."""
        for of_layer in caches:
            for cache in of_layer:
                if type(cache) is self.row_class:
                    self.take_back(cache)

    def append(self, row: Any, k: Any, v: Any) -> None:
        """Write one token of a row where it is; k and v are (1, n_kv_heads, 1, head_dim)."""
        layer, number, at = self.layer_of(row), self.number_of(row), row.offset
        layer.arena.intact = False
        layer.keys[number : number + 1, :, at : at + 1] = k
        layer.values[number : number + 1, :, at : at + 1] = v
        row.offset = at + 1

    def drop(self, row: Any) -> None:
        """Forget a row's KV: a cache that stock fills anew, with tokens of the same dtype.

        Stock reuses the buffers, and where the pool's dtype is not the model's it is theirs that
        decides what the next request is computed in. Zeros take no memory before they are used.
        """
        layer = self.layer_of(row)
        layer.arena.intact = False
        row.__class__ = self.cache_class
        row.keys = self._empty(layer.keys, row.max_seq_len)
        row.values = self._empty(layer.values, row.max_seq_len)
        layer.held -= 1
        if not layer.held:
            layer.keys = layer.values = None  # at once, and not when Python collects cycles

    def part(self, row: Any, start: int, end: int) -> tuple[Any, Any]:
        """Copies of a row's K and V from `start` to `end`, (n_kv_heads, end - start, head_dim)."""
        layer, number = self.layer_of(row), self.number_of(row)
        contiguous = self._core.contiguous
        return (
            contiguous(layer.keys[number, :, start:end]),
            contiguous(layer.values[number, :, start:end]),
        )

    def _runs(self, caches: Sequence[Any]) -> Iterator[tuple[Any, slice, int | None]]:
        """Who holds the KV of one or more requests, in which rows, and how much of it is used.

        Rows that lie beside each other in a layer of an arena come as one run of it, all used.
        """
        first = 0
        while first < len(caches):
            layer, last = self._layer_if_row(caches[first]), first + 1
            if layer is None:
                yield caches[first], slice(None), caches[first].offset
            else:
                number = self.number_of(caches[first])
                while (
                    last < len(caches)
                    and self._layer_if_row(caches[last]) is layer
                    and self.number_of(caches[last]) == number + last - first
                ):
                    last += 1
                yield layer, slice(number, number + last - first), None
            first = last

    def _joined(self, parts: Sequence[tuple[Any, int | None]], capacity: int) -> Any:
        """Rows one after the other, each with zeros behind its tokens.

        What a reused buffer of stock's holds beyond its request may be anything, and 0 x NaN is
        not 0.
        """
        if not any(length is None and array.shape[2] == capacity for array, length in parts):
            return self._gathered(parts, capacity)
        whole = [self._widened(array[:, :, :length], capacity) for array, length in parts]
        return whole[0] if len(whole) == 1 else self._core.concatenate(whole, axis=0)

    def _gathered(self, parts: Sequence[tuple[Any, int | None]], capacity: int) -> Any:
        """The same by writing into one array, where every part would have to be widened."""
        first, rows = parts[0][0], sum(array.shape[0] for array, _ in parts)
        shape = (rows, first.shape[1], capacity, first.shape[3])
        gathered, row = self._core.zeros(shape, dtype=first.dtype), 0
        for array, length in parts:
            tokens = min(array.shape[2] if length is None else length, capacity)
            end = row + array.shape[0]
            gathered[row:end, :, :tokens] = array[:, :, :tokens]
            row = end
        return gathered

    def _empty(self, like: Any, room: int) -> Any:
        """A buffer of one request, not evaluated, (1, n_kv_heads, room, head_dim)."""
        return self._core.zeros((1, like.shape[1], room, like.shape[3]), dtype=like.dtype)

    def _widened(self, array: Any, capacity: int) -> Any:
        batch, heads, length, head_dim = array.shape
        if length == capacity:
            return array
        zeros = self._core.zeros((batch, heads, capacity - length, head_dim), dtype=array.dtype)
        return self._core.concatenate([array, zeros], axis=2)


def _doubled(room: int, length: int) -> int:
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

    return Row
