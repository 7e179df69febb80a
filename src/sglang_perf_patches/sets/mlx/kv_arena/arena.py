"""A batch's KV in buffers that outlive the decode step: per layer, one for K and one for V.

A request is a row, padded on the right as in stock. While an arena holds a request's KV, its cache
objects are `Row`s: stock's own objects with their class set to a subclass that reads from the
arena. Before anything but a batched decode touches the KV, the subclass copies it back into a
buffer like stock's.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

COUNTS: Counter[str] = Counter()
"""Counts for this process: ``steps`` that arenas handled, and the attention ``layers`` in them;
``stock steps`` of two or more requests, and of those the ``tried steps``, which an arena computed
too, for comparison; ``builds`` and ``growths`` of arenas; and ``partings``, when their rows are
copied back because a batch has changed again."""

CUDNN_STEP = 256  # MLX for CUDA decodes by cuDNN where a buffer's length is a multiple of this
STOCK_ROOM = 4096  # minimum capacity of a request's buffers in stock, in tokens
AT_MOST = 2  # padded rows may take this many times the capacity of stock's buffers
_ROUND = 64
_ASIDE = 8

Caches = Sequence[Sequence[Any]]  # the requests', by attention layer, then by request
Groups = Sequence[Sequence[int]]  # the rows of each group of a batch, which have an arena each
Part = tuple[Caches, list[int]]  # the caches of a group, and their lengths


@dataclass(eq=False)
class Layer:
    """One layer's buffers."""

    arena: Arena
    caches: list[Any]  # those of the rows, in their order
    held: int  # rows with their KV here; the last one frees the buffers
    keys: Any = None  # (batch, n_kv_heads, capacity, head_dim); so are the values
    values: Any = None


@dataclass(eq=False)
class Arena:
    """The buffers of one batch."""

    capacity: int  # of a row, in tokens
    lengths: list[int]  # tokens of each row
    lasts: bool = False  # its batch was decoded twice or more
    # Indexed like the layers of a decode context; None is one that stock handles.
    layers: list[Layer | None] = field(default_factory=list)


def capacity_for(length: int, most: int) -> int:
    """Capacity for `length` tokens and some more, if possible at most `most`, in tokens."""
    # A buffer grows by a sixteenth, at most once in 64 tokens: copies cost a constant per token.
    capacity = -(-(length + _ROUND + length // 16) // _ROUND) * _ROUND
    capacity = max(length, min(capacity, most))
    if capacity % CUDNN_STEP:
        return capacity
    # Else MLX's CUDA backend would use another kernel than for the arrays that stock attends to.
    return capacity - _ASIDE if capacity - _ASIDE >= length else capacity + _ASIDE


def parts_of(caches: Caches, lengths: list[int], groups: Groups) -> list[Part]:
    """Each group's part of a batch."""
    if len(groups) == 1:
        return [(caches, lengths)]
    return [
        ([[each[row] for row in group] for each in caches], [lengths[row] for row in group])
        for group in groups
    ]


class Arenas:
    """Builds, enlarges and dissolves arenas.

    `core` is ``mlx.core``, and `cache_class` stock's cache of one request and layer. A cache whose
    KV is in an arena has the subclass `row_class`.
    """

    def __init__(self, core: Any, cache_class: Any) -> None:
        self.core, self.cache_class = core, cache_class
        # While a cache is a row, stock's two slots hold its layer and its number in that layer.
        # Stock sets them only in methods that `Row` replaces.
        self._keys, self._values = cache_class.keys, cache_class.values
        self._layer_of: Callable[[Any], Layer] = self._keys.__get__
        self._number_of: Callable[[Any], int] = self._values.__get__
        self.row_class = _row_class(self, cache_class)
        self.layers: WeakSet[Layer] = WeakSet()  # those with requests' KV

    def has_any(self) -> bool:
        """Whether some request's KV is in an arena; any thread may ask."""
        try:
            return any(layer.keys is not None for layer in self.layers)
        except RuntimeError:  # the set has grown meanwhile
            return True

    def layer_if_row(self, cache: Any) -> Layer | None:
        """The layer that holds a row; None for a cache that is not a row."""
        return self._layer_of(cache) if type(cache) is self.row_class else None

    def among(self, caches: Iterable[Iterable[Any]]) -> Iterator[tuple[Any, Layer]]:
        """Each row among caches, by layer, then by request, and the layer that holds it."""
        for of_layer in caches:
            for cache in of_layer:
                if type(cache) is self.row_class:
                    yield cache, self._layer_of(cache)

    def of(self, row: Any, name: str) -> Any:
        """A row's slice of its layer's keys or values, (1, n_kv_heads, capacity, head_dim)."""
        number = self._number_of(row)
        return getattr(self._layer_of(row), name)[number : number + 1]

    def leave(self, caches: Caches) -> None:
        """Copy all rows back, for stock, which attends to each request's own buffer."""
        for of_layer in caches:
            self._take_all_back(row for row, _ in self.among([of_layer]))

    def take_back(self, row: Any) -> None:
        """Copy a row back into its own buffer, with the capacity it would have in stock."""
        layer, number, length = self._layer_of(row), self._number_of(row), row.offset
        both = layer.keys, layer.values
        keys, values = (each[number : number + 1, :, :length] for each in both)
        self.drop(row)
        if length:
            row.max_seq_len = room = _doubled(row.max_seq_len, length)
            row.keys, row.values = self._widened(keys, room), self._widened(values, room)

    def drop(self, row: Any) -> None:
        """Discard a row's KV, leaving a cache that stock fills again."""
        # In the same dtype, which decides that of the next request where the pool's differs from
        # the model's. Zeros take no memory until they are used.
        layer = self._layer_of(row)
        row.__class__ = self.cache_class
        for name in ("keys", "values"):
            held = getattr(layer, name)
            shape = (1, held.shape[1], row.max_seq_len, held.shape[3])
            setattr(row, name, self.core.zeros(shape, dtype=held.dtype))
        layer.held -= 1
        if not layer.held:
            layer.keys = layer.values = None  # free now, not when Python collects cycles

    def most(self, caches: Caches, lengths: Sequence[int]) -> int:
        """Maximum capacity of a row in tokens, so that padding stays near stock's memory use."""
        return AT_MOST * self._room_in_stock(caches, lengths) // len(lengths)

    def can_hold(self, caches: Sequence[Any], lengths: Sequence[int]) -> bool:
        """Whether one layer's caches can share a buffer: stock's class, filled, same shape."""
        kinds = set()
        for cache, length in zip(caches, lengths, strict=True):
            holder = self.layer_if_row(cache)
            if holder is None:
                if type(cache) is not self.cache_class:
                    return False
                holder = cache
            keys, values = holder.keys, holder.values
            if keys is None or cache.offset != length:
                return False
            kinds.add((keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, values.dtype))
        return len(kinds) == 1

    def build(self, caches: Caches, lengths: list[int]) -> Arena:
        """Move KV from stock's buffers and other arenas, whose other rows return to own buffers."""
        arena = Arena(capacity_for(max(lengths) + 1, self.most(caches, lengths)), list(lengths))
        # Stock's evaluation of a prefill leaves its buffers in reference cycles: see `Row.state`.
        gc.collect(1)
        # Old and new buffers take memory together until the new ones are evaluated: those of all
        # layers, if that stays within stock's memory use.
        chosen = [each if self.can_hold(each, lengths) else None for each in caches]
        held = [*filter(None, chosen)]
        taken = sum(self._room(cache) for of_layer in held for cache in of_layer)
        spare = self._room_in_stock(caches, lengths) * len(held) - taken
        is_at_once = len(held) * len(lengths) * arena.capacity <= spare
        for of_layer in chosen:
            layer = None if of_layer is None else self._layer(arena, of_layer)
            arena.layers.append(layer)
            if layer is not None and not is_at_once:
                self.core.eval(layer.keys)
                self.core.eval(layer.values)
        self.core.eval([(each.keys, each.values) for each in filter(None, arena.layers)])
        return arena

    def grow(self, arena: Arena, capacity: int) -> None:
        """Enlarge each row to `capacity` tokens, layer by layer."""
        for layer in filter(None, arena.layers):
            layer.keys = self._widened(layer.keys, capacity)
            layer.values = self._widened(layer.values, capacity)
            self.core.eval(layer.keys, layer.values)
        arena.capacity = capacity

    def _take_all_back(self, rows: Iterable[Any]) -> None:
        taken: list[Any] = []
        for row in rows:
            self.take_back(row)
            taken += [row.keys, row.values]
        self.core.eval(taken)

    def _widened(self, array: Any, capacity: int) -> Any:
        """The rows, padded with zeros to `capacity` tokens."""
        batch, heads, length, head_dim = array.shape
        if length == capacity:
            return array
        zeros = self.core.zeros((batch, heads, capacity - length, head_dim), dtype=array.dtype)
        return self.core.concatenate([array, zeros], axis=2)

    def _room_in_stock(self, caches: Caches, lengths: Sequence[int]) -> int:
        """Tokens of stock's buffers of a layer after the next token, without mlx.first-buffer."""
        if any(isinstance(of_layer[0], self.cache_class) for of_layer in caches):
            return sum(_doubled(STOCK_ROOM, length + 1) for length in lengths)
        return 0

    def _room(self, cache: Any) -> int:
        """The capacity of a cache's buffer, in tokens."""
        layer = self.layer_if_row(cache)
        return int(cache.max_seq_len) if layer is None else layer.arena.capacity

    def _layer(self, arena: Arena, caches: Sequence[Any]) -> Layer:
        """One layer, with unevaluated buffers."""
        stay = {id(cache) for cache in caches}
        for old in {layer for _, layer in self.among([caches])}:
            rows = self.among([old.caches])
            self._take_all_back(row for row, now in rows if now is old and id(row) not in stay)
        runs = self._runs(caches)
        layer = Layer(arena, list(caches), len(caches))
        for name in ("keys", "values"):
            parts = [getattr(source, name)[rows, :, tokens] for source, rows, tokens in runs]
            setattr(layer, name, self._gathered(parts, arena.capacity))
        for source, _, _ in runs:
            source.keys = source.values = None
        self.layers.add(layer)
        for number, cache in enumerate(caches):
            cache.__class__ = self.row_class
            self._keys.__set__(cache, layer)
            self._values.__set__(cache, number)
        return layer

    def _runs(self, caches: Sequence[Any]) -> list[tuple[Any, slice, slice]]:
        """Adjacent rows: what holds their KV, and which of its rows and tokens."""
        runs: list[tuple[Any, slice, slice]] = []
        for cache in caches:
            layer = self.layer_if_row(cache)
            if layer is None:
                runs.append((cache, slice(None), slice(cache.offset)))
                continue
            first = number = self._number_of(cache)
            if runs and runs[-1][0] is layer and runs[-1][1].stop == number:
                first = runs.pop()[1].start
            runs.append((layer, slice(first, number + 1), slice(None)))
        return runs

    def _gathered(self, parts: Sequence[Any], capacity: int) -> Any:
        """All rows in one array, each with zeros behind its tokens."""
        # A reused buffer of stock's may hold anything there, and 0 x NaN is not 0.
        first, rows = parts[0], sum(array.shape[0] for array in parts)
        shape = (rows, first.shape[1], capacity, first.shape[3])
        gathered, row = self.core.zeros(shape, dtype=first.dtype), 0
        for array in parts:
            end, tokens = row + array.shape[0], min(array.shape[2], capacity)
            gathered[row:end, :, :tokens] = array[:, :, :tokens]
            row = end
        return gathered


def _doubled(room: int, length: int) -> int:
    """The capacity after stock's growth, which doubles `room` until `length` fits."""
    while room < length:
        room *= 2
    return room


def _row_class(arenas: Arenas, cache_class: Any) -> Any:
    """A subclass without fields of its own, so that a cache can switch between the classes."""

    class Row(cache_class):  # type: ignore[misc]
        __slots__ = ()
        keys = property(lambda self: arenas.of(self, "keys"))
        values = property(lambda self: arenas.of(self, "values"))

        @property
        def state(self) -> tuple[()]:
            """Nothing for ``mx.eval``: the tokens of a step depend on everything that it writes."""
            # Stock's function that collects these arrays refers to itself, so they would live until
            # Python collects cycles, and MLX updates in place only what nothing else references.
            return ()

        def write_token(self, k: Any, v: Any) -> None:
            arenas.take_back(self)
            self.write_token(k, v)

        def update_and_fetch(self, keys: Any, values: Any) -> Any:
            arenas.take_back(self)
            return self.update_and_fetch(keys, values)

        def reset(self) -> None:
            arenas.drop(self)
            self.reset()

        def leave_arena(self) -> None:
            """Copy the KV back into its own buffer, for code that keeps the cache."""
            arenas.take_back(self)

    return Row
