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

from collections.abc import Sequence
from typing import Any

from .. import grouping
from ..device import is_proven
from ..references import ATTENTION, BATCHED_DECODE, CONTIGUOUS, CORE, RUNNER
from . import PATCH
from .arena import Arena, Rows
from .arena_self_check import ArenaSelfCheck
from .choice import COUNTS, Choice, Groups
from .layer_step import Core
from .moves import Moves
from .step import GroupedStep, Step

_STEP = "_sglang_perf_patches_arena"


@PATCH.setup("… 0.5.12.post1")
def setup_contiguous(patch):
    _setup(patch, CONTIGUOUS, "layer_caches")


@PATCH.setup("0.5.13 …")
def setup_attention(patch):
    _setup(patch, ATTENTION, "attention_layer_caches")


def _setup(patch, cache_class, field):
    core = patch.module("mlx.core")
    rows = Rows(core, patch.get(cache_class))
    moves = Moves(rows)
    choice = Choice(rows, moves)
    trial = None if is_proven(core) else ArenaSelfCheck(rows, choice, moves, patch)
    # Stock would write and read row by row, and MLX copies a shared buffer each time. In the
    # middle of a step the layers' lengths would differ.
    patch.drain(lambda: not rows.has_any(), "no request's KV is in a batch's buffers")
    patch.state.rows, patch.state.trial = rows, trial
    patch.state.begin = lambda ctx: _begin(moves, choice, trial, core, ctx, field)


@PATCH.replaces(
    {
        "… 0.5.12.post1": f"{CONTIGUOUS}.write_token",
        "0.5.13 … 0.5.14": f"{ATTENTION}.write_token",
    }
)
def write_token(self, k, v, *, stock):
    """Grow a full buffer, then write; k and v are (1, n_kv_heads, 1, head_dim).

    In these releases the batched decode loses what it writes past the end. If the lengths of a
    batch differ, a ValueError then ends the step. If they are equal, nothing is raised and the
    logits are wrong.
    """
    if self.offset >= self.max_seq_len:
        self._grow(self.offset + 1)
    stock(self, k, v)


@PATCH.replaces(f"{RUNNER}.decode_batch_start_chained")
def decode_batch_start_chained(self, prev, *, patch, stock):
    """Build a step before the last one is read; a trial tells such steps from others."""
    trial = patch.state.trial
    if trial is None:
        return stock(self, prev)
    trial.is_chained = True
    try:
        return stock(self, prev)
    finally:
        trial.is_chained = False


@PATCH.replaces(f"{RUNNER}._release_cache")
def release_cache(self, cache, *, patch, stock):
    """Take the caches out of the arena before stock keeps them for another request."""
    rows = patch.state.rows
    for each in cache:
        if type(each) is rows.row_class:
            rows.drop(each)
    stock(self, cache)


@PATCH.makes(CORE)
def core(patch, stock):
    return Core(stock)


@PATCH.makes(BATCHED_DECODE)
def decode(patch, stock):
    begin, ran = patch.state.begin, patch.ran

    def batched_decode(self, x, ctx):
        """Decode one layer from the batch's arena; x and the result are (batch, 1, hidden)."""
        known = vars(ctx)
        try:
            step = known[_STEP]
        except KeyError:
            step = known[_STEP] = begin(ctx)
        if step is None or not step.has(self):
            return stock(self, x, ctx)
        if step.trial is None:
            ran.seen = True
            result = step.decode(stock, self, x)
        else:
            result = stock(self, x, ctx)
            step.trial.note(result, step.decode(stock, self, x))
        step.has_served()
        return result

    return batched_decode


def _begin(
    moves: Moves, choice: Choice, trial: ArenaSelfCheck | None, core: Any, ctx: Any, field: str
) -> Step | None:
    """At a step's first layer, choose an arena with room for a token; None for stock."""
    caches, lengths = getattr(ctx, field), list(ctx.seq_lens)
    has_rope_kernel = getattr(getattr(ctx, "aot", None), "rope", None) is not None
    if ctx.batch_size < 2 or has_rope_kernel:
        # Stock attends to a single request's buffer directly; its length selects the kernel.
        moves.leave(caches)
        return None
    mark = vars(ctx).get(grouping.MARK)
    groups = [[*range(len(lengths))]] if mark is None else grouping.groups_of(lengths)
    if trial is not None:
        if mark is not None:
            trial.gate_of_groups = mark.gate
        if len(groups) > 1 and not choice.can_group(caches, lengths, groups):
            groups = [[*range(len(lengths))]]
        if trial.is_needed(lengths, groups):
            tried = trial.begin(caches, lengths, groups)
            if tried is None:
                return None
            return _step(groups, tried.arenas, core, ctx, field, trial)
    arenas = choice.arenas_for(caches, lengths, groups)
    if not arenas:
        return None
    COUNTS["steps"] += 1
    if len(arenas) > 1:
        grouping.COUNTS["steps"] += 1
        mark.ran.seen = True
    return _step(groups, arenas, core, ctx, field, None)


def _step(groups: Groups, arenas: Sequence[Arena], *step: Any) -> Step:
    """A step in one arena, or in one for each group."""
    return Step(arenas, *step) if len(arenas) == 1 else GroupedStep(groups, arenas, *step)
