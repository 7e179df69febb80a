"""Prompts of a hybrid model as the rows of one pass; each row continues from its own states.

A recurrent state holds every token that went through it, so padding must not reach it, and a prefix
cannot be computed again from its middle. Here each row begins where its prefix ends: mlx-lm's own
caches for batches pad KV on the left, and tell recurrent layers how long each row is.

Stock computes a prompt in two parts if it keeps the state between them for later prompts. So does
a row. Rows of one group have first parts of one length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .grouping import MOST_KV, MOST_ROUNDED, STEP
from .rows import Held, Part, Row, last_logits, padded


@dataclass(frozen=True)
class Prompt:
    """One row, before its pass.

    Attributes:
        tokens: those to compute.
        prefix: how many tokens `held` holds.
        first: how many tokens its first part has; 0 if it has one part.
        held: what the layers hold.
    """

    tokens: Sequence[int]
    prefix: int
    first: int
    held: Held


def extent(starts: Sequence[int], lengths: Sequence[int], *, rounds: bool) -> tuple[int, int, int]:
    """Rows, tokens of each row, and tokens before them, of one pass.

    A small pass is rounded up if `rounds`.
    """
    rows, tokens, behind = len(starts), max(lengths), max(starts)
    if rounds:
        many = 1 << (rows - 1).bit_length()
        long, far = (-(-each // STEP) * STEP for each in (tokens, behind))
        if many * long <= MOST_ROUNDED and many * (long + far) <= MOST_KV:
            return many, long, far
    return rows, tokens, behind


def kind(prompts: Sequence[Prompt], *, rounds: bool) -> str:
    """What of mlx-lm's caches for batches a group needs, in words."""
    first, starts = prompts[0].first, [each.prefix for each in prompts]
    lengths = [len(each.tokens) for each in prompts]
    passes = [(starts, [first] * len(starts))] if first else []
    passes.append(([each + first for each in starts], [each - first for each in lengths]))
    kinds = set()
    for begins, parts in passes:
        _, tokens, behind = extent(begins, parts, rounds=rounds)
        kinds |= {"padded"} if min(parts) < tokens else set()
        if behind:
            kinds.add(f"behind {'equal' if min(begins) == behind else 'unequal'} prefixes")
    return ", ".join(sorted(kinds)) or "whole"


def compute(
    core: Any,
    caches: Any,
    runner: Any,
    prompts: Sequence[Prompt],
    *,
    attention: Sequence[int],
    rounds: bool,
) -> list[Row]:
    """Build the passes of several prompts, whose first parts are of one length.

    `caches` is ``mlx_lm.models.cache``, and `attention` the numbers of the layers with attention.

    Returns:
        a row for each prompt, unevaluated. A single prompt that is not rounded is computed with
        mlx-lm's caches for one request.
    """
    passes = _Passes(core, caches, runner, attention, rounds)
    held = [each.held for each in prompts]
    starts = [each.prefix for each in prompts]
    first = prompts[0].first
    parts: Sequence[Part | None] = [None] * len(prompts)
    if first:
        trunk = runner._trunk or runner.model
        tokens = [each.tokens[:first] for each in prompts]

        def keep_states(cache: Sequence[Any], rows: Sequence[Sequence[int]], width: int) -> None:
            trunk(padded(core, rows, width), cache=cache)

        parts = before = passes.compute(held, starts, tokens, keep_states)
        held = [each.layers for each in before]
        starts = [each + first for each in starts]
    last = passes.compute(
        held,
        starts,
        [each.tokens[first:] for each in prompts],
        lambda cache, rows, tokens: last_logits(core, runner.model, cache, rows, tokens),
    )
    return [Row(**vars(own), first=part) for part, own in zip(parts, last, strict=True)]


class _Passes:
    """Computes the passes of one group."""

    def __init__(
        self, core: Any, caches: Any, runner: Any, attention: Sequence[int], rounds: bool
    ) -> None:
        self._core, self._caches, self._runner = core, caches, runner
        self._attention, self._rounds = attention, rounds

    def compute(
        self,
        held: Sequence[Held],
        starts: Sequence[int],
        rows: Sequence[Sequence[int]],
        model: Callable[[Sequence[Any], Sequence[Sequence[int]], int], Any],
    ) -> list[Part]:
        """One part of each row; `model` gives its logits, or None."""
        core, wanted = self._core, len(rows)
        size, tokens, behind = extent(starts, [*map(len, rows)], rounds=self._rounds)
        copies = size - wanted
        held = [*held, *[held[0]] * copies]
        starts = [*starts, *[starts[0]] * copies]
        rows = [*rows, *[rows[0]] * copies]
        lengths = [len(each) for each in rows]
        cache = self._runner._new_cache_skeleton()
        for layer, of in enumerate(cache):
            arrays = [each[layer] for each in held]
            if layer in self._attention:
                cache[layer] = self._kv(arrays, starts, behind)
            else:
                of.cache = [self._joined(each) for each in zip(*arrays, strict=True)]
                if min(lengths) < tokens:
                    of.prepare(lengths=lengths)
        output = model(cache, rows, tokens)
        parts = []
        for index in range(wanted):
            start, end = starts[index], starts[index] + lengths[index]
            # Gathered, as a slice would keep all rows in memory as long as a state of one is kept.
            at = core.array([index], core.int32)
            own = slice(behind - start, behind - start + end)
            layers = [
                (of.keys[index : index + 1, :, own], of.values[index : index + 1, :, own])
                if layer in self._attention
                else tuple(core.take(each, at, axis=0) for each in of.cache)
                for layer, of in enumerate(cache)
            ]
            logits = None if output is None else output[index : index + 1]
            parts.append(Part(start, lengths[index], layers, self._attention[0], logits))
        return parts

    def _kv(self, arrays: Sequence[Sequence[Any]], starts: Sequence[int], behind: int) -> Any:
        """The cache of an attention layer, which holds up to `behind` tokens of each row."""
        is_single = len(arrays) == 1 and behind == starts[0]
        lacking = [behind - each for each in starts]
        cache = self._caches.KVCache() if is_single else self._caches.BatchKVCache(lacking)
        if behind:
            cache.keys, cache.values = (
                self._core.concatenate([*map(self._padded, lacking, whole)])
                for whole in zip(*arrays, strict=True)
            )
            cache.offset = cache.offset + behind
            if not is_single:
                cache._idx = behind
        return cache

    def _padded(self, lacking: int, array: Any) -> Any:
        return self._core.pad(array, [(0, 0), (0, 0), (lacking, 0), (0, 0)]) if lacking else array

    def _joined(self, arrays: Sequence[Any]) -> Any:
        """One array of a recurrent layer's; None if the rows, all without prefixes, have none."""
        return None if arrays[0] is None else self._core.concatenate(arrays)
