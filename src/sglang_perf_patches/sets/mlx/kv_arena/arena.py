"""A batch's KV in buffers that outlive the decode step: per layer, one for K and one for V.

A request is a row, padded on the right as in stock. While an arena holds a request's KV, its cache
objects are `Row`s: stock's own objects with their class set to a subclass that reads from the
arena. Before anything but a batched decode touches the KV, the subclass copies it back into a
buffer like stock's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

CUDNN_STEP = 256  # MLX for CUDA decodes by cuDNN where a buffer's length is a multiple of this
STOCK_ROOM = 4096  # minimum capacity of a request's buffers in stock, in tokens
AT_MOST = 2  # padded rows may take this many times the capacity of stock's buffers
_ROUND = 64
_ASIDE = 8


@dataclass(eq=False)
class Layer:
    """One layer's buffers."""

    arena: Arena
    caches: list[Any]  # those of the rows, in their order
    keys: Any = None  # (batch, n_kv_heads, capacity, head_dim); so are the values
    values: Any = None

    def __post_init__(self) -> None:
        self.held = len(self.caches)  # rows with their KV here; the last one frees the buffers


@dataclass(eq=False)
class Arena:
    """The buffers of one batch."""

    capacity: int  # of a row, in tokens
    lengths: list[int]  # tokens of each row
    intact: bool = True  # every row is still here
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


def doubled(room: int, length: int) -> int:
    """The capacity after stock's growth, which doubles `room` until `length` fits."""
    while room < length:
        room *= 2
    return room


class Rows:
    """Reads, writes and removes one row of an arena.

    `core` is ``mlx.core``, and `cache_class` stock's cache of one request and layer. A cache whose
    KV is in an arena has the subclass `row_class`.
    """

    def __init__(self, core: Any, cache_class: Any) -> None:
        self.core, self.cache_class = core, cache_class
        # While a cache is a row, stock's two slots hold its layer and its number in that layer.
        # Stock sets them only in methods that `Row` replaces.
        self._keys, self._values = cache_class.keys, cache_class.values
        self.layer_of: Callable[[Any], Layer] = self._keys.__get__
        self.number_of: Callable[[Any], int] = self._values.__get__
        self.row_class = _row_class(self, cache_class)
        self._layers: WeakSet[Layer] = WeakSet()

    def has_any(self) -> bool:
        """Whether some request's KV is in an arena; any thread may ask."""
        try:
            return any(layer.keys is not None for layer in self._layers)
        except RuntimeError:  # the set has grown meanwhile
            return True

    def forget(self, layer: Layer) -> None:
        """Forget a layer whose rows are copies: no request's KV is in it."""
        self._layers.discard(layer)

    def put(self, cache: Any, layer: Layer, number: int) -> None:
        """Turn a cache into a row of a layer, or move a row to another place."""
        cache.__class__ = self.row_class
        self._layers.add(layer)
        self._keys.__set__(cache, layer)
        self._values.__set__(cache, number)

    def layer_if_row(self, cache: Any) -> Layer | None:
        """The layer that holds a row; None for a cache that is not a row."""
        return self.layer_of(cache) if type(cache) is self.row_class else None

    def among(self, caches: Iterable[Iterable[Any]]) -> Iterator[tuple[Any, Layer]]:
        """Each row among caches, by layer, then by request, and the layer that holds it."""
        for of_layer in caches:
            for cache in of_layer:
                if type(cache) is self.row_class:
                    yield cache, self.layer_of(cache)

    def widened(self, array: Any, capacity: int) -> Any:
        """The rows, padded with zeros to `capacity` tokens."""
        batch, heads, length, head_dim = array.shape
        if length == capacity:
            return array
        zeros = self.core.zeros((batch, heads, capacity - length, head_dim), dtype=array.dtype)
        return self.core.concatenate([array, zeros], axis=2)

    def of(self, row: Any, name: str) -> Any:
        """A row's slice of its layer's keys or values, (1, n_kv_heads, capacity, head_dim)."""
        number = self.number_of(row)
        return getattr(self.layer_of(row), name)[number : number + 1]

    def take_back(self, row: Any) -> None:
        """Copy a row back into its own buffer, with the capacity it would have in stock."""
        layer, number, length = self.layer_of(row), self.number_of(row), row.offset
        tokens = (slice(number, number + 1), slice(None), slice(length))
        keys, values = layer.keys[tokens], layer.values[tokens]
        self.drop(row)
        if length:
            row.max_seq_len = room = doubled(row.max_seq_len, length)
            row.keys, row.values = self.widened(keys, room), self.widened(values, room)

    def drop(self, row: Any) -> None:
        """Discard a row's KV, leaving a cache that stock fills again."""
        # In the same dtype, which decides that of the next request where the pool's differs from
        # the model's. Zeros take no memory until they are used.
        layer = self.layer_of(row)
        layer.arena.intact = False
        row.__class__ = self.cache_class
        for name in ("keys", "values"):
            _, heads, _, head_dim = (held := getattr(layer, name)).shape
            zeros = self.core.zeros((1, heads, row.max_seq_len, head_dim), dtype=held.dtype)
            setattr(row, name, zeros)
        layer.held -= 1
        if not layer.held:
            layer.keys = layer.values = None  # free now, not when Python collects cycles


def _row_class(rows: Rows, cache_class: Any) -> Any:
    """A subclass without fields of its own, so that a cache can switch between the classes."""

    class Row(cache_class):  # type: ignore[misc]
        __slots__ = ()
        keys = property(lambda self: rows.of(self, "keys"))
        values = property(lambda self: rows.of(self, "values"))

        @property
        def state(self) -> tuple[()]:
            """Nothing for ``mx.eval``: the tokens of a step depend on everything that it writes."""
            # Stock's function that collects these arrays refers to itself, so they would live until
            # Python collects cycles, and MLX updates in place only what nothing else references.
            return ()

        def write_token(self, k: Any, v: Any) -> None:
            rows.take_back(self)
            self.write_token(k, v)

        def update_and_fetch(self, keys: Any, values: Any) -> Any:
            rows.take_back(self)
            return self.update_and_fetch(keys, values)

        def reset(self) -> None:
            rows.drop(self)
            self.reset()

        def leave_arena(self) -> None:
            """Copy the KV back into its own buffer, for code that keeps the cache."""
            rows.take_back(self)

    return Row
