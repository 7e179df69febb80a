"""Moves the KV of many requests at once: into an arena, into a larger one, and out again."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from .arena import Arena, Layer, Rows


class Moves:
    """Makes, enlarges and dissolves the arenas of `rows`."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._core = rows, rows.core

    def build(
        self,
        caches: Sequence[Sequence[Any]],
        lengths: list[int],
        can_hold: Sequence[bool],
        capacity: int,
        in_stock: int,
    ) -> Arena:
        """Move KV from stock's buffers and from other arenas into a new arena.

        The other rows of those arenas return to buffers like stock's.

        Args:
            caches: indexed by layer, then by request.
            lengths: tokens of each request.
            can_hold: whether a layer's caches can share a buffer; stock handles other layers.
            capacity: of a row, in tokens.
            in_stock: total capacity of stock's buffers of a layer, in tokens.
        """
        arena = Arena(capacity, list(lengths))
        # Stock's evaluation of a prefill leaves its buffers in reference cycles: see `Row.state`.
        gc.collect(1)
        # Old and new buffers take memory together until the new ones are evaluated: those of all
        # layers, if that stays within stock's memory use.
        held = [*itertools.compress(caches, can_hold)]
        spare = sum(in_stock - self._room(of_layer) for of_layer in held)
        is_at_once = len(held) * len(lengths) * capacity <= spare
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

    def take_back(self, rows: Iterable[Any]) -> None:
        """Copy rows back into their own buffers."""
        taken: list[Any] = []
        for row in rows:
            self._rows.take_back(row)
            taken += [row.keys, row.values]
        self._core.eval(taken)

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
        layer = Layer(arena, list(caches), None, None)
        for name in ("keys", "values"):
            parts = [(getattr(source, name)[rows], length) for source, rows, length in runs]
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
            self.take_back(
                cache
                for cache, holder in self._rows.among([old.caches])
                if holder is old and id(cache) not in stay
            )

    def _runs(self, caches: Sequence[Any]) -> list[tuple[Any, slice, int | None]]:
        """The sources of the KV: the holder, which of its rows, and how many tokens count.

        Adjacent rows of an arena's layer form one run. None as the count means all tokens.
        """
        runs: list[tuple[Any, slice, int | None]] = []
        for cache in caches:
            layer = self._rows.layer_if_row(cache)
            if layer is None:
                runs.append((cache, slice(None), cache.offset))
                continue
            first = number = self._rows.number_of(cache)
            if runs and runs[-1][0] is layer and runs[-1][1].stop == number:
                first = runs.pop()[1].start
            runs.append((layer, slice(first, number + 1), None))
        return runs

    def _gathered(self, parts: Sequence[tuple[Any, int | None]], capacity: int) -> Any:
        """All rows in one array, each with zeros behind its tokens.

        A reused buffer of stock's may hold anything behind its request's tokens, and 0 x NaN is
        not 0.
        """
        first, rows = parts[0][0], sum(array.shape[0] for array, _ in parts)
        shape = (rows, first.shape[1], capacity, first.shape[3])
        gathered, row = self._core.zeros(shape, dtype=first.dtype), 0
        for array, length in parts:
            tokens = min(array.shape[2] if length is None else length, capacity)
            end = row + array.shape[0]
            gathered[row:end, :, :tokens] = array[:, :, :tokens]
            row = end
        return gathered
