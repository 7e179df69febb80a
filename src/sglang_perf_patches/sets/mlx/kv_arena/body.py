"""``mlx.kv-arena``: a batch's KV stays together from one decode step to the next.

Stock's own method of the attention wrapper still runs, once per layer. A `_LayerStep` replaces the
layer's attention module and its requests' caches. It writes the new token of the whole batch and
returns K and V of the whole batch, so stock has nothing to write, pad or concatenate per request.

A decode step, in the order of calls on which this relies:

| stock calls | what answers |
| --- | --- |
| the wrapper of the first layer with buffers | `Choice.begin`: an arena, or None: all stock's |
| the wrapper of each such layer, in any order | `Step.decode`, which runs stock's method |
| what that method calls, in this order | a `_LayerStep`: see its table |
| ``concatenate`` of K, then of V | `core_of_steps`: the array is there |
| attention | `core_of_steps`: once, or once for each group of requests of like length |
| after the last layer | `Step.has_served`: the rows are a token longer |

A layer that attends to a window is stock's. An exception in between leaves the rows as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....model.patching import Patching
from .. import grouping
from ..device import is_proven
from .arena import COUNTS, Arena, Arenas, Caches, Groups, Part, capacity_for, parts_of
from .arena_self_check import ArenaSelfCheck
from .step import Step


def setup(patch: Patching, cache_class: str, field: str) -> None:
    core: Any = patch.module("mlx.core")
    arenas = Arenas(core, patch.get(cache_class))
    choice = Choice(arenas, field)
    if not is_proven(core):
        choice.trial = ArenaSelfCheck(arenas, choice.is_expected, patch)
    patch.state.arenas, patch.state.begin = arenas, choice.begin
    patch.state.is_chained = False  # the step that is being built: see `Kind`


class Choice:
    """Decides which steps of a batched decode an arena handles; stock handles the others.

    A batch is identified by its requests' caches. The decision depends on the caches, and on
    whether stock handled the same batch in the step before:

    | caches | batch | decision |
    | --- | --- | --- |
    | all rows of one arena, in order | the arena's | the arena handles the step |
    | anything else | served by stock in the step before | build an arena |
    | some rows, all in arenas that last | another | build an arena at once |
    | some rows, one in an arena that does not last | another | copy them back; stock |
    | no rows | another | stock |

    A build copies the KV once, as stock does at each step, so it pays from the second step on. An
    arena lasts once it has served a second step. Stock reads and writes row by row, and MLX would
    copy a shared buffer each time; so before such a step each request gets buffers of its own.
    """

    def __init__(self, arenas: Arenas, field: str) -> None:
        self._arenas, self._field = arenas, field
        self._expected: tuple[list[int], list[int]] = [], []
        self.trial: ArenaSelfCheck | None = None

    def begin(self, ctx: Any) -> Step | None:
        """At a step's first layer, choose an arena with room for a token; None for stock."""
        caches, lengths = getattr(ctx, self._field), list(ctx.seq_lens)
        has_rope_kernel = getattr(getattr(ctx, "aot", None), "rope", None) is not None
        if ctx.batch_size < 2 or has_rope_kernel:
            # Stock attends to a single request's buffer directly; its length selects the kernel.
            self._arenas.leave(caches)
            return None
        mark, trial, whole = vars(ctx).get(grouping.MARK), self.trial, [[*range(len(lengths))]]
        groups: Groups = whole if mark is None else grouping.groups_of(lengths)
        arenas = None
        if trial is not None:
            if mark is not None:
                trial.gate_of_groups = mark.gate
            parts = parts_of(caches, lengths, groups)
            if len(groups) > 1 and not self._fits(parts, [None] * len(parts)):
                groups = whole
            arenas = trial.begin(caches, lengths, groups)
        if arenas is None:
            trial, arenas = None, self.arenas_for(caches, lengths, groups)
        if not arenas:
            return None
        if trial is None:
            COUNTS["steps"] += 1
            if len(arenas) > 1:
                grouping.COUNTS["steps"] += 1
                mark.ran.seen = True
        groups = groups if len(arenas) > 1 else whole
        return Step(groups, arenas, self._arenas.core, ctx, self._field, trial)

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
            held = {layer.arena for _, layer in self._arenas.among(caches)}
            if not held or not all(each.lasts for each in held):
                if held:
                    COUNTS["partings"] += 1
                return self._no_arenas(caches)
        serving = []
        for part, arena in zip(parts, arenas, strict=True):
            if arena is None:
                arena = self._arenas.build(*part)
                COUNTS["builds"] += 1
                arena.lasts = is_expected
            else:
                arena.lasts = True
                if (needed := max(part[1]) + 1) > arena.capacity:
                    self._arenas.grow(arena, capacity_for(needed, self._arenas.most(*part)))
                    COUNTS["growths"] += 1
            serving.append(arena)
        return serving

    def is_expected(self, caches: Caches, lengths: list[int]) -> bool:
        """Whether the step checked before this one was of the same batch."""
        # Compares ids: a reference kept here would outlive its request.
        batch, before = [id(cache) for cache in caches[0]], self._expected
        self._expected = batch, [length + 1 for length in lengths]
        return before == (batch, lengths)

    def _no_arenas(self, caches: Caches) -> list[Arena]:
        self._arenas.leave(caches)
        COUNTS["stock steps"] += 1
        return []

    def _fits(self, parts: Sequence[Part], arenas: Sequence[Arena | None]) -> bool:
        """Whether these arenas, or new ones, can hold the parts, with the same layers of each."""
        can_hold = []
        for (caches, lengths), arena in zip(parts, arenas, strict=True):
            if max(lengths) + 1 > self._arenas.most(caches, lengths):
                return False
            if arena is None:
                can_hold.append([self._arenas.can_hold(each, lengths) for each in caches])
            else:
                can_hold.append([layer is not None for layer in arena.layers])
        return any(can_hold[0]) and all(each == can_hold[0] for each in can_hold)

    def _arena_of(self, caches: Caches, lengths: list[int]) -> Arena | None:
        """The arena that holds exactly these rows with these lengths."""
        first = next(filter(None, (self._arenas.layer_if_row(each[0]) for each in caches)), None)
        if first is None or first.arena.lengths != lengths:
            return None
        layers = first.arena.layers
        is_same = len(layers) == len(caches) and all(
            layer is None or (layer.caches == of_layer and layer.held == len(of_layer))
            for layer, of_layer in zip(layers, caches, strict=True)
        )
        return first.arena if is_same else None
