"""Prompts as the rows of one forward pass, and each row as stock would have computed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..trunk import TRUNK, CutTrunk, in_place_of, logits_of, owner_of_trunk

Held = Sequence[Sequence[Any]]
"""What a row's layers hold, by layer: keys and values, (1, n_kv_heads, tokens, head_dim), or a
recurrent layer's arrays, (1, …), None without a state; nothing, if it is empty."""


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
class Row(Part):
    """One prompt of a group: its last part, and `first`, what stock computes before that."""

    first: Part | None = None

    def is_near(self, single: Row, core: Any, part: float) -> bool:
        """Whether logits, KV and states differ by a part of the other row's largest at most."""
        pairs = [(self.logits, single.logits)]
        for mine, its in ((self.first, single.first), (self, single)):
            if mine is not None and its is not None:
                for one, other in zip(mine.layers, its.layers, strict=True):
                    pairs += zip(one, other, strict=True)
        near = []
        for one, other in pairs:
            one, other = one.astype(core.float32), other.astype(core.float32)
            near.append(core.max(core.abs(one - other)) <= part * core.max(core.abs(other)))
        return bool(core.all(core.stack(near)).item())


def is_recurrent(cache: Any) -> bool:
    """Whether a layer's cache is mlx-lm's for recurrent states, which can be told lengths."""
    return hasattr(cache, "lengths") and isinstance(getattr(cache, "cache", None), list)


class Layer:
    """The KV of all rows in one layer, as the cache of a forward pass.

    Attributes:
        offset: tokens before the first computed one, the same for all rows.
        keys: (rows, n_kv_heads, offset + tokens, head_dim), after the forward pass; so are values.
    """

    def __init__(self, core: Any, make_mask: Any, prefix: tuple[Any, Any] | None) -> None:
        """`prefix`: K and V of each row's prefix, (rows, n_kv_heads, offset, head_dim)."""
        self._core, self._make_mask, self._prefix = core, make_mask, prefix
        self.offset: int = 0 if prefix is None else prefix[0].shape[2]
        self.keys: Any = None
        self.values: Any = None

    def make_mask(
        self,
        tokens: int,
        return_array: bool = False,
        window_size: int | None = None,
        **_: Any,
    ) -> Any:
        """Stock's mask of a prompt: padding is behind each row, so no token attends to it."""
        return self._make_mask(
            tokens, self.offset, return_array=return_array, window_size=window_size
        )

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Put the prefix in front of the new K and V, and keep both."""
        if self._prefix is not None:
            keys = self._core.concatenate([self._prefix[0], keys], axis=2)
            values = self._core.concatenate([self._prefix[1], values], axis=2)
        self.keys, self.values = keys, values
        return keys, values


def put(cache: Any, keys: Any, values: Any, start: int) -> None:
    """Give an attention layer's cache, which holds `start` tokens, KV of these and of the next."""
    new = slice(start, None)
    if hasattr(cache, "_full_keys"):
        # What its own `update_and_fetch` leaves; prefix and prompt are joined already.
        cache.offset = keys.shape[2]
        cache._full_keys, cache._full_values = keys, values
        cache._new_keys, cache._new_values = keys[:, :, new], values[:, :, new]
    else:
        cache.update_and_fetch(keys[:, :, new], values[:, :, new])


def compute(
    core: Any,
    model: Any,
    layers: Sequence[Layer],
    prompts: Sequence[tuple[int, Sequence[int]]],
    tokens: int,
) -> list[Row]:
    """Build one forward pass of several prompts: an unevaluated row for each.

    Args:
        core: ``mlx.core``.
        model: mlx-lm's model, which attends by stock's wrappers.
        layers: a fresh one for each layer; their offset is the same.
        prompts: each row's length of prefix in the pool, and all tokens of the prompt.
        tokens: how many to compute in each row, padding included.
    """
    offset = layers[0].offset
    new = [prompt[offset:] for _, prompt in prompts]
    logits = last_logits(core, model, layers, new, tokens)
    return [
        Row(
            start=prefix,
            tokens=len(prompt) - prefix,
            layers=[
                tuple(own(each, at, len(prompt)) for each in (of.keys, of.values)) for of in layers
            ],
            attention=0,
            logits=logits[at : at + 1],
        )
        for at, (prefix, prompt) in enumerate(prompts)
    ]


def own(array: Any, row: int, tokens: int) -> Any:
    """(1, n_kv_heads, tokens, head_dim) of all rows', without padding."""
    return array[row : row + 1, :, :tokens]


def padded(core: Any, rows: Sequence[Sequence[int]], tokens: int) -> Any:
    """Tokens of each row with zeros behind them: (rows, tokens), int32."""
    return core.array([[*each, *[0] * (tokens - len(each))] for each in rows], core.int32)


def last_logits(
    core: Any, model: Any, cache: Sequence[Any], rows: Sequence[Sequence[int]], tokens: int
) -> Any:
    """The logits of each row's last token, (rows, 1, vocabulary), of a pass of `tokens` each."""
    last = core.array([len(each) - 1 for each in rows], core.int32)[:, None, None]

    def cut(hidden: Any) -> Any:
        return core.take_along_axis(hidden, last, axis=1)

    ids = padded(core, rows, tokens)
    owner = owner_of_trunk(model)
    if owner is None:
        return cut(logits_of(model(ids, cache=cache)))
    trunk = CutTrunk(owner[TRUNK], cut)
    with in_place_of(owner, trunk):
        logits = logits_of(model(ids, cache=cache))
    return logits if trunk.hidden is not None else cut(logits)
