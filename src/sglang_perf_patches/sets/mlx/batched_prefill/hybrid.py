"""Prompts of a hybrid model as the rows of one pass, which go on from each row's own states.

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

from .rows import are_near, last_logits, padded, put

_STEP = 32
"""Tokens to which lengths are rounded where a device plans each new shape."""

Held = Sequence[Sequence[Any]]
"""What a row's layers hold, by layer: keys and values, (1, n_kv_heads, tokens, head_dim), or a
recurrent layer's arrays, (1, …), each of which may be None; nothing, if it is empty."""


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

    def is_near(self, alone: Row, core: Any, part: float) -> bool:
        """Whether logits, KV and states differ by a part of the other row's largest at most."""
        pairs = [(self.last.logits, alone.last.logits)]
        for mine, its in ((self.first, alone.first), (self.last, alone.last)):
            if mine is not None and its is not None:
                for one, other in zip(mine.layers, its.layers, strict=True):
                    pairs += zip(one, other, strict=True)
        return are_near(core, pairs, part)


def is_recurrent(cache: Any) -> bool:
    """Whether a layer's cache is mlx-lm's for recurrent states, which can be told lengths."""
    return hasattr(cache, "lengths") and isinstance(getattr(cache, "cache", None), list)


def compute(
    core: Any,
    caches: Any,
    runner: Any,
    prompts: Sequence[Prompt],
    *,
    attention: Sequence[int],
    rounds: bool,
) -> list[Row]:
    """Build the passes of several prompts.

    Args:
        core: ``mlx.core``.
        caches: ``mlx_lm.models.cache``.
        runner: stock's.
        prompts: the rows; their first parts are of one length.
        attention: the numbers of the layers with attention.
        rounds: whether to round shapes up.

    Returns:
        a row for each prompt, unevaluated.
    """
    batches = _Batches(core, caches, runner, attention, rounds)
    held = [each.held for each in prompts]
    starts = [each.prefix for each in prompts]
    first = prompts[0].first
    parts: Sequence[Part | None] = [None] * len(prompts)
    if first:
        trunk = runner._trunk or runner.model
        parts = before = batches.compute(
            held,
            starts,
            [each.tokens[:first] for each in prompts],
            lambda cache, rows, tokens: trunk(padded(core, rows, tokens), cache=cache),
        )
        held = [each.layers for each in before]
        starts = [each + first for each in starts]
    last = batches.compute(
        held,
        starts,
        [each.tokens[first:] for each in prompts],
        lambda cache, rows, tokens: last_logits(core, runner.model, cache, rows, tokens),
    )
    return [Row(*each) for each in zip(parts, last, strict=True)]


class _Batches:
    """Passes of one group."""

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
        """One part of each row."""
        core, wanted = self._core, len(rows)
        tokens, behind = max(map(len, rows)), max(starts)
        if self._rounds:
            tokens, behind = (-(-each // _STEP) * _STEP for each in (tokens, behind))
            copies = (1 << (wanted - 1).bit_length()) - wanted
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
            logits = output[index : index + 1]
            parts.append(Part(start, lengths[index], layers, self._attention[0], logits))
        return parts

    def _kv(self, arrays: Sequence[Sequence[Any]], starts: Sequence[int], behind: int) -> Any:
        """The cache of an attention layer, which holds up to `behind` tokens of each row."""
        cache = self._caches.BatchKVCache([behind - each for each in starts])
        if behind:
            cache.keys, cache.values = (
                self._core.concatenate(
                    [self._padded(each, array) for each, array in self._filled(whole, behind)]
                )
                for whole in zip(*[each or (None, None) for each in arrays], strict=True)
            )
            cache.offset = cache.offset + behind
            cache._idx = behind
        return cache

    def _filled(self, arrays: Sequence[Any], behind: int) -> list[tuple[int, Any]]:
        """Each row's KV and how many tokens are missing in front of it."""
        some = next(each for each in arrays if each is not None)
        empty = some[:, :, :0]
        filled = [empty if each is None else each for each in arrays]
        return [(behind - each.shape[2], each) for each in filled]

    def _padded(self, missing: int, array: Any) -> Any:
        return self._core.pad(array, [(0, 0), (0, 0), (missing, 0), (0, 0)]) if missing else array

    def _joined(self, arrays: Sequence[Any]) -> Any:
        """One array of a recurrent layer's, with zeros for a row that has no state yet."""
        some = next((each for each in arrays if each is not None), None)
        if some is None:
            return None
        zeros = self._core.zeros_like(some)
        return self._core.concatenate([zeros if each is None else each for each in arrays])
