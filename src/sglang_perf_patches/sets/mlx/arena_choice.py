"""Which steps of a batched decode an arena serves, and which are left to stock.

A batch is known by its requests' caches. What is done with a step follows from what they are and
from whether the batch is the one that was left to stock just before:

| the caches | the batch | so |
| --- | --- | --- |
| are the rows of one arena, all of them, in order | is its own | the step is taken in it |
| are anything else | was left to stock one token ago | an arena is built: it comes again |
| include rows that lie together, in arenas that last | is another | one is built at once |
| include rows that lie together, in one that does not | is another | stock; a buffer for each row |
| are no rows, or rows that lie alone | is another | stock |

A build copies the KV once, as stock does at each step: it pays from the second step on. An arena
lasts once it has served a second step. Rows that stock reads and writes by request are given
buffers of their own, because MLX would copy a shared one each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .arena import AT_MOST, STOCK_ROOM, Arena, Rows, capacity_for, doubled
from .arena_moves import Moves

COUNTS: Counter[str] = Counter()
"""What happened in this process: ``steps`` that an arena served, with the attention ``layers`` in
them; ``stock steps`` of two or more requests, of which ``tried steps`` were taken in an arena too
and compared; ``builds`` and ``growths`` of arenas, and ``partings`` of their rows before a step of
stock's."""

Caches = Sequence[Sequence[Any]]
"""The requests' caches, by attention layer and request."""


class Choice:
    """The table above."""

    def __init__(self, rows: Rows, moves: Moves) -> None:
        """`rows` says what a row is, `moves` makes arenas."""
        self._rows, self._moves = rows, moves
        self._expected: tuple[list[int], list[int]] = [], []

    def leave(self, caches: Caches) -> None:
        """Take all rows back: for stock that attends to each request's buffer as it lies."""
        self._rows.take_all_back(caches)

    def arena_for(self, caches: Caches, lengths: list[int]) -> Arena | None:
        """The arena that serves a step, with room for a token more in each row; None for stock."""
        most = self.most(caches, lengths)
        needed = max(lengths) + 1
        arena = self._arena_of(caches, lengths)
        can_hold = [arena is not None or self._can_hold(each, lengths) for each in caches]
        if needed > most or not any(can_hold):
            self.leave(caches)
            COUNTS["stock steps"] += 1
            return None
        if arena is not None:
            arena.lasts = True
            if needed > arena.capacity:
                self._moves.grow(arena, capacity_for(needed, most))
                COUNTS["growths"] += 1
            return arena
        is_expected = self.is_expected(caches, lengths)
        if not is_expected and not self._has_lasting_rows(caches):
            if self._moves.set_apart(caches):
                COUNTS["partings"] += 1
            COUNTS["stock steps"] += 1
            return None
        arena = self.build(caches, lengths)
        arena.lasts = is_expected
        return arena

    def build(self, caches: Caches, lengths: list[int]) -> Arena:
        """An arena of these caches, whose layers that can't share a buffer stay with stock."""
        capacity = self._capacity_for(caches, max(lengths) + 1, self.most(caches, lengths))
        can_hold = [self._can_hold(of_layer, lengths) for of_layer in caches]
        room = self._room_in_stock(caches, lengths)
        COUNTS["builds"] += 1
        return self._moves.build(caches, lengths, can_hold, capacity, room)

    def most(self, caches: Caches, lengths: Sequence[int]) -> int:
        """Tokens that a row may have room for, so that padded ones are not far above stock's."""
        return AT_MOST * self._room_in_stock(caches, lengths) // len(lengths)

    def is_expected(self, caches: Caches, lengths: list[int]) -> bool:
        """Whether the step for which this was asked before was one of the same batch."""
        # By identity alone: whatever is kept here would outlive its request.
        batch, before = [id(cache) for cache in caches[0]], self._expected
        self._expected = batch, [length + 1 for length in lengths]
        return before == (batch, lengths)

    def _arena_of(self, caches: Caches, lengths: list[int]) -> Arena | None:
        """The arena that holds just these rows, by layer and request, with these lengths."""
        for of_layer in caches:
            found = self._rows.layer_if_row(of_layer[0])
            if found is not None:
                arena = found.arena
                same = arena.intact and arena.lengths == lengths
                if same and len(arena.layers) == len(caches):
                    pairs = zip(arena.layers, caches, strict=True)
                    if all(layer is None or layer.caches == of_layer for layer, of_layer in pairs):
                        return arena
                return None
        return None

    def _has_lasting_rows(self, caches: Caches) -> bool:
        """Whether rows lie together, and all of those in arenas that last."""
        shared = self._moves.shared(caches)
        return bool(shared) and all(layer.arena.lasts for layer in shared)

    def _can_hold(self, caches: Sequence[Any], lengths: Sequence[int]) -> bool:
        """Whether one layer's caches can share a buffer: of stock's class, filled, of one shape."""
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

    def _room_in_stock(self, caches: Caches, lengths: Sequence[int]) -> int:
        """Tokens that stock's buffers of a layer have room for after the next token, together.

        Whatever mlx.first-buffer makes of them.
        """
        if any(isinstance(of_layer[0], self._rows.cache_class) for of_layer in caches):
            return sum(doubled(STOCK_ROOM, length + 1) for length in lengths)
        return 0

    def _capacity_for(self, caches: Caches, length: int, most: int) -> int:
        """As the function of that name, or what rows have now if that is not much different.

        Rows of the same capacity are copied once, others twice.
        """
        wanted = capacity_for(length, most)
        for of_layer in caches:
            rows = [found for found in map(self._rows.layer_if_row, of_layer) if found is not None]
            if rows:
                held = max(layer.arena.capacity for layer in rows)
                return held if length <= held <= min(most, wanted + wanted // 4) else wanted
        return wanted
