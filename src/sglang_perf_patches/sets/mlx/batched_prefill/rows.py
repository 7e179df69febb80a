"""Prompts as the rows of one forward pass, and each row as stock would have computed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..trunk import TRUNK, in_place_of, logits_of, owner_of_trunk


@dataclass(frozen=True)
class Row:
    """One prompt of a group, computed but not evaluated.

    Called as a model, it gives its logits and writes its KV into the caches.

    Attributes:
        index: its row.
        prefix: tokens whose KV is in the pool; some of them may have been computed again.
        tokens: tokens behind them.
        layers: KV by layer; None of a layer without attention.
        logits: of the last position, (1, 1, vocabulary).
    """

    index: int
    prefix: int
    tokens: int
    layers: Sequence[Layer]
    logits: Any

    def __call__(self, _: Any, *, cache: Sequence[Any]) -> Any:
        """Fill a request's caches, and return the logits."""
        for layer, of in zip(self.layers, cache, strict=True):
            put(of, self._own(layer.keys), self._own(layer.values), self.prefix)
        return self.logits

    def fits(self, input_ids: Any, cache: Sequence[Any]) -> bool:
        """Whether a call of the model, for this request, asks for what was computed.

        A row holds its prefix too. Only an empty cache or one that reads the pool takes that; one
        that holds the prefix already, as of an earlier turn, would hold it twice.
        """
        asked = input_ids.shape == (1, self.tokens) and cache[0].offset == self.prefix
        return bool(asked and (not self.prefix or hasattr(cache[0], "_full_keys")))

    def is_near(self, single: Row, core: Any, part: float) -> bool:
        """Whether logits and KV differ from another row's by a part of its largest at most."""
        both = [(self.logits, single.logits)]
        for one, other in zip(self.layers, single.layers, strict=True):
            both += [
                (self._own(one.keys), single._own(other.keys)),
                (self._own(one.values), single._own(other.values)),
            ]
        return are_near(core, both, part)

    def _own(self, array: Any) -> Any:
        """(1, n_kv_heads, prefix + tokens, head_dim) of all rows', without padding."""
        return array[self.index : self.index + 1, :, : self.prefix + self.tokens]


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


def are_near(core: Any, pairs: Iterable[tuple[Any, Any]], part: float) -> bool:
    """Whether the arrays of each pair differ by a part of the second's largest value at most."""
    near = []
    for mine, its in pairs:
        mine, its = mine.astype(core.float32), its.astype(core.float32)
        near.append(core.max(core.abs(mine - its)) <= part * core.max(core.abs(its)))
    return bool(core.all(core.stack(near)).item())


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
        Row(index, prefix, len(prompt) - prefix, layers, logits[index : index + 1])
        for index, (prefix, prompt) in enumerate(prompts)
    ]


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
    trunk = _Trunk(owner[TRUNK], cut)
    with in_place_of(owner, trunk):
        logits = logits_of(model(ids, cache=cache))
    return logits if trunk.was_cut else cut(logits)


class _Trunk:
    """Replaces a model's trunk, and gives the head only each row's last position."""

    def __init__(self, trunk: Any, cut: Any) -> None:
        self._trunk, self._cut = trunk, cut
        self.was_cut = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        hidden = self._trunk(*args, **kwargs)
        self.was_cut = getattr(hidden, "ndim", 0) == 3
        return self._cut(hidden) if self.was_cut else hidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trunk, name)
