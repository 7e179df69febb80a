"""``mlx.kv-arena``: a batch's KV stays together from one decode step to the next.

Stock's own method of the attention wrapper still runs, once per layer. A `LayerStep` replaces the
layer's attention module and its requests' caches. It writes the new token of the whole batch and
returns K and V of the whole batch, so stock has nothing to write, pad or concatenate per request.

A decode step, in the order of calls on which this relies:

| stock calls | what answers |
| --- | --- |
| the wrapper of the first layer with buffers | `_begin` chooses an arena, or None: all stock's |
| the wrapper of each such layer, in any order | `Step.decode`, which runs stock's method |
| what that method calls, in this order | a `LayerStep`: see its table |
| ``concatenate`` of K, then of V | `Core`: the array is there |
| attention | `Core.fast`: once, or once for each group of requests of like length |
| after the last layer | `Step.has_served`: the rows are a token longer |

A layer that attends to a window is stock's. An exception in between leaves the rows as they were.
"""

from __future__ import annotations

from typing import Any

from ....model.patching import Patching
from .. import grouping
from ..device import is_proven
from .arena import Rows
from .arena_self_check import ArenaSelfCheck
from .choice import COUNTS, Choice
from .moves import Moves
from .step import GroupedStep, Step


def setup(patch: Patching, cache_class: str, field: str) -> None:
    core: Any = patch.module("mlx.core")
    rows = Rows(core, patch.get(cache_class))
    choice = Choice(rows, Moves(rows))
    trial = None if is_proven(core) else ArenaSelfCheck(rows, choice, patch)
    patch.state.rows, patch.state.trial = rows, trial
    patch.state.begin = lambda ctx: _begin(choice, trial, core, ctx, field)


def _begin(
    choice: Choice, trial: ArenaSelfCheck | None, core: Any, ctx: Any, field: str
) -> Step | None:
    """At a step's first layer, choose an arena with room for a token; None for stock."""
    caches, lengths = getattr(ctx, field), list(ctx.seq_lens)
    has_rope_kernel = getattr(getattr(ctx, "aot", None), "rope", None) is not None
    if ctx.batch_size < 2 or has_rope_kernel:
        # Stock attends to a single request's buffer directly; its length selects the kernel.
        choice.moves.leave(caches)
        return None
    mark = vars(ctx).get(grouping.MARK)
    groups = [[*range(len(lengths))]] if mark is None else grouping.groups_of(lengths)
    if trial is not None and mark is not None:
        trial.gate_of_groups = mark.gate
        if len(groups) > 1 and not choice.can_group(caches, lengths, groups):
            groups = [[*range(len(lengths))]]
    if trial is not None and trial.is_needed(lengths, groups):
        arenas = trial.begin(caches, lengths, groups)
    else:
        trial, arenas = None, choice.arenas_for(caches, lengths, groups)
    if not arenas:
        return None
    if trial is None:
        COUNTS["steps"] += 1
        if len(arenas) > 1:
            grouping.COUNTS["steps"] += 1
            mark.ran.seen = True
    step = arenas, core, ctx, field, trial
    return Step(*step) if len(arenas) == 1 else GroupedStep(groups, *step)
