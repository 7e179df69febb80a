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
from .rows import are_near, last_logits, padded, put

Held = Sequence[Sequence[Any]]
"""What a row's layers hold, by layer: keys and values, (1, n_kv_heads, tokens, head_dim), or a
recurrent layer's arrays, (1, …), None without a state; nothing, if it is empty."""


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


@dataclass(frozen=True)
class Part:
    """A part of a prompt, computed but not evaluated. Called as a model, it fills the caches.

    Attributes:
        start: tokens before it.
        tokens: its own.
        layers: what each layer holds after it.
        attention: the number of the first attention layer.
        logits: of its last token, (1, 1, vocabulary); None where nothing reads them.
    """

    start: int
    tokens: int
    layers: Held
    attention: int
    logits: Any = None

    def fits(self, input_ids: Any, cache: Sequence[Any]) -> bool:
        """Whether a call of the model, for this request, asks for what was computed."""
        of = cache[self.attention]
        return bool(input_ids.shape == (1, self.tokens) and of.offset == self.start)

    def __call__(self, _: Any, *, cache: Sequence[Any]) -> Any:
        """Fill a request's caches, and return the logits."""
        for arrays, of in zip(self.layers, cache, strict=True):
            if is_recurrent(of):
                of.cache = list(arrays)
            else:
                keys, values = arrays
                put(of, keys, values, self.start)
        return self.logits


@dataclass(frozen=True)
class Row:
    """One prompt of a group: its last part, and what stock computes before that."""

    first: Part | None
    last: Part

    def fits(self, input_ids: Any, cache: Sequence[Any]) -> bool:
        """Whether a call of the model asks for the last part."""
        return self.last.fits(input_ids, cache)

    def __call__(self, input_ids: Any, *, cache: Sequence[Any]) -> Any:
        """Fill a request's caches, and return the logits."""
        return self.last(input_ids, cache=cache)

    def is_near(self, single: Row, core: Any, part: float) -> bool:
        """Whether logits, KV and states differ by a part of the other row's largest at most."""
        pairs = [(self.last.logits, single.last.logits)]
        for mine, its in ((self.first, single.first), (self.last, single.last)):
            if mine is not None and its is not None:
                for one, other in zip(mine.layers, its.layers, strict=True):
                    pairs += zip(one, other, strict=True)
        return are_near(core, pairs, part)


def is_recurrent(cache: Any) -> bool:
    """Whether a layer's cache is mlx-lm's for recurrent states, which can be told lengths."""
    return hasattr(cache, "lengths") and isinstance(getattr(cache, "cache", None), list)


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
    return [Row(*each) for each in zip(parts, last, strict=True)]


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
