"""Moves KV of many requests at once: into an arena that can hold it, a larger one, and out."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from .arena import AT_MOST, STOCK_ROOM, Arena, Layer, Rows, capacity_for, doubled

Caches = Sequence[Sequence[Any]]  # the requests', by attention layer, then by request


class Moves:
    """Makes, enlarges and dissolves the arenas of `rows`."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._core = rows, rows.core

    def leave(self, caches: Caches) -> None:
        """Copy all rows back, for stock, which attends to each request's own buffer."""
        for of_layer in caches:
            self._take_back(row for row, _ in self._rows.among([of_layer]))

    def most(self, caches: Caches, lengths: Sequence[int]) -> int:
        """Maximum capacity of a row in tokens, so that padding stays near stock's memory use."""
        return AT_MOST * self._room_in_stock(caches, lengths) // len(lengths)

    def can_hold(self, caches: Sequence[Any], lengths: Sequence[int]) -> bool:
        """Whether one layer's caches can share a buffer: stock's class, filled, same shape."""
        kinds = set()
        for cache, length in zip(caches, lengths, strict=True):
            holder = self._rows.layer_if_row(cache)
            if holder is None:
                if type(cache) is not self._rows.cache_class:
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
        can_hold = [self.can_hold(of_layer, lengths) for of_layer in caches]
        held = [*itertools.compress(caches, can_hold)]
        spare = self._room_in_stock(caches, lengths) * len(held) - sum(map(self._room, held))
        is_at_once = len(held) * len(lengths) * arena.capacity <= spare
        for of_layer, holds in zip(caches, can_hold, strict=True):
            layer = self._layer(arena, of_layer) if holds else None
            arena.layers.append(layer)
            if layer is not None and not is_at_once:
                self._core.eval(layer.keys)
                self._core.eval(layer.values)
        self._core.eval([(each.keys, each.values) for each in arena.layers if each is not None])
        return arena

    def grow(self, arena: Arena, capacity: int) -> None:
        """Enlarge each row to `capacity` tokens, layer by layer."""
        for layer in arena.layers:
            if layer is not None:
                layer.keys = self._rows.widened(layer.keys, capacity)
                layer.values = self._rows.widened(layer.values, capacity)
                self._core.eval(layer.keys, layer.values)
        arena.capacity = capacity

    def _take_back(self, rows: Iterable[Any]) -> None:
        taken: list[Any] = []
        for row in rows:
            self._rows.take_back(row)
            taken += [row.keys, row.values]
        self._core.eval(taken)

    def _room_in_stock(self, caches: Caches, lengths: Sequence[int]) -> int:
        """Tokens of stock's buffers of a layer after the next token, without mlx.first-buffer."""
        if any(isinstance(of_layer[0], self._rows.cache_class) for of_layer in caches):
            return sum(doubled(STOCK_ROOM, length + 1) for length in lengths)
        return 0

    def _room(self, caches: Sequence[Any]) -> int:
        """Total capacity of the buffers of one layer's caches, in tokens."""
        layers = map(self._rows.layer_if_row, caches)
        return sum(
            cache.max_seq_len if layer is None else layer.arena.capacity
            for cache, layer in zip(caches, layers, strict=True)
        )

    def _layer(self, arena: Arena, caches: Sequence[Any]) -> Layer:
        """One layer, with unevaluated buffers."""
        self._take_back_but(caches)
        runs = self._runs(caches)
        layer = Layer(arena, list(caches))
        for name in ("keys", "values"):
            parts = [getattr(source, name)[rows, :, tokens] for source, rows, tokens in runs]
            setattr(layer, name, self._gathered(parts, arena.capacity))
        for source, _, _ in runs:
            source.keys = source.values = None
        for number, cache in enumerate(caches):
            self._rows.put(cache, layer, number)
        return layer

    def _take_back_but(self, caches: Sequence[Any]) -> None:
        """Copy the other rows of these caches' arenas back into their own buffers."""
        stay = {id(cache) for cache in caches}
        for old in {layer for _, layer in self._rows.among([caches])}:
            old.arena.intact = False
            rows = self._rows.among([old.caches])
            self._take_back(row for row, now in rows if now is old and id(row) not in stay)

    def _runs(self, caches: Sequence[Any]) -> list[tuple[Any, slice, slice]]:
        """Adjacent rows: what holds their KV, and which of its rows and tokens."""
        runs: list[tuple[Any, slice, slice]] = []
        for cache in caches:
            layer = self._rows.layer_if_row(cache)
            if layer is None:
                runs.append((cache, slice(None), slice(cache.offset)))
                continue
            first = number = self._rows.number_of(cache)
            if runs and runs[-1][0] is layer and runs[-1][1].stop == number:
                first = runs.pop()[1].start
            runs.append((layer, slice(first, number + 1), slice(None)))
        return runs

    def _gathered(self, parts: Sequence[Any], capacity: int) -> Any:
        """All rows in one array, each with zeros behind its tokens."""
        # A reused buffer of stock's may hold anything there, and 0 x NaN is not 0.
        first, rows = parts[0], sum(array.shape[0] for array in parts)
        shape = (rows, first.shape[1], capacity, first.shape[3])
        gathered, row = self._core.zeros(shape, dtype=first.dtype), 0
        for array in parts:
            end, tokens = row + array.shape[0], min(array.shape[2], capacity)
            gathered[row:end, :, :tokens] = array[:, :, :tokens]
            row = end
        return gathered
