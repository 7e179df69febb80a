"""Decides which steps of a batched decode an arena handles; stock handles the others.

A batch is identified by its requests' caches. The decision depends on the caches, and on whether
stock handled the same batch in the step before:

| caches | batch | decision |
| --- | --- | --- |
| all rows of one arena, in order | the arena's | the arena handles the step |
| anything else | served by stock in the step before | build an arena |
| some rows, all in arenas that last | another | build an arena at once |
| some rows, one in an arena that does not last | another | copy them back; stock |
| no rows | another | stock |

A build copies the KV once, as stock does at each step, so it pays from the second step on. An
arena lasts once it has served a second step. Stock reads and writes row by row, and MLX would copy
a shared buffer each time; so before such a step each request gets buffers of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .arena import Arena, Rows, capacity_for
from .moves import Caches, Moves

COUNTS: Counter[str] = Counter()
"""Counts for this process: ``steps`` that arenas handled, and the attention ``layers`` in them;
``stock steps`` of two or more requests, and of those the ``tried steps``, which an arena computed
too, for comparison; ``builds`` and ``growths`` of arenas; and ``partings``, when their rows are
copied back because a batch has changed again."""

Groups = Sequence[Sequence[int]]  # the rows of each group of a batch, which have an arena each
Part = tuple[Caches, list[int]]  # the caches and lengths of a group


class Choice:
    """Which arenas handle a step: the rules of the table above."""

    def __init__(self, rows: Rows, moves: Moves) -> None:
        self._rows, self.moves = rows, moves
        self._expected: tuple[list[int], list[int]] = [], []

    def arenas_for(self, caches: Caches, lengths: list[int], groups: Groups) -> list[Arena]:
        """Arenas with room for the tokens: one per group, or one for all; none for stock."""
        parts = parts_of(caches, lengths, groups)
        arenas = [self._arena_of(*part) for part in parts]
        if not self._fits(parts, arenas):
            if len(groups) > 1:
                return self.arenas_for(caches, lengths, [range(len(lengths))])
            return self._no_arenas(caches)
        is_expected = None in arenas and self.is_expected(caches, lengths)
        if None in arenas and not is_expected:
            held = {layer.arena for _, layer in self._rows.among(caches)}
            if not held or not all(each.lasts for each in held):
                if held:
                    COUNTS["partings"] += 1
                return self._no_arenas(caches)
        serving = []
        for part, arena in zip(parts, arenas, strict=True):
            if arena is None:
                arena = self.moves.build(*part)
                COUNTS["builds"] += 1
                arena.lasts = is_expected
            else:
                arena.lasts = True
                if (needed := max(part[1]) + 1) > arena.capacity:
                    self.moves.grow(arena, capacity_for(needed, self.moves.most(*part)))
                    COUNTS["growths"] += 1
            serving.append(arena)
        return serving

    def _no_arenas(self, caches: Caches) -> list[Arena]:
        self.moves.leave(caches)
        COUNTS["stock steps"] += 1
        return []

    def can_group(self, caches: Caches, lengths: list[int], groups: Groups) -> bool:
        """Whether `arenas_for` would give each group an arena of its own."""
        parts = parts_of(caches, lengths, groups)
        return self._fits(parts, [None] * len(parts))

    def _fits(self, parts: Sequence[Part], arenas: Sequence[Arena | None]) -> bool:
        """Whether these arenas, or new ones, can hold the parts, with the same layers of each."""
        can_hold, moves = [], self.moves
        for (caches, lengths), arena in zip(parts, arenas, strict=True):
            if max(lengths) + 1 > moves.most(caches, lengths):
                return False
            if arena is None:
                can_hold.append([moves.can_hold(of_layer, lengths) for of_layer in caches])
            else:
                can_hold.append([layer is not None for layer in arena.layers])
        return any(can_hold[0]) and all(each == can_hold[0] for each in can_hold)

    def is_expected(self, caches: Caches, lengths: list[int]) -> bool:
        """Whether the step checked before this one was of the same batch."""
        # Compares ids: a reference kept here would outlive its request.
        batch, before = [id(cache) for cache in caches[0]], self._expected
        self._expected = batch, [length + 1 for length in lengths]
        return before == (batch, lengths)

    def _arena_of(self, caches: Caches, lengths: list[int]) -> Arena | None:
        """The arena that holds exactly these rows with these lengths."""
        first = next(filter(None, (self._rows.layer_if_row(each[0]) for each in caches)), None)
        if first is None or not first.arena.intact or first.arena.lengths != lengths:
            return None
        layers = first.arena.layers
        is_same = len(layers) == len(caches) and all(
            layer is None or layer.caches == of_layer
            for layer, of_layer in zip(layers, caches, strict=True)
        )
        return first.arena if is_same else None


def parts_of(caches: Caches, lengths: list[int], groups: Groups) -> list[Part]:
    """Each group's caches, by layer, then by request, and lengths."""
    if len(groups) == 1:
        return [(caches, lengths)]
    return [
        ([[each[row] for row in group] for each in caches], [lengths[row] for row in group])
        for group in groups
    ]
