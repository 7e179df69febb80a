"""The forward passes of a group of prompts, which are their rows.

A recurrent state holds every token that went through it, so padding must not reach it. Each row
begins where its prefix ends: KV of shorter prefixes is padded on the left, and prompts behind their
last token. mlx-lm's caches tell recurrent layers how long each row is.

Stock computes a hybrid model's prompt in two parts if it keeps the state between them for later
prompts. So does a group, whose first parts have one length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..trunk import TRUNK, CutTrunk, in_place_of, logits_of, owner_of_trunk
from .grouping import Group
from .rows import Part


class Layer:
    """The KV of all rows in an attention layer, as the cache of a forward pass."""

    def __init__(self, core: Any, masks: Any, lacking: Sequence[int], prefixes: Any) -> None:
        """`prefixes` are keys and values, of which each row lacks so many on the left."""
        self._core, self._masks = core, masks
        self._lacking = core.array(lacking) if any(lacking) else None
        # Each (rows, n_kv_heads, tokens, head_dim), or None for no tokens.
        self.keys, self.values = prefixes

    @property
    def offset(self) -> Any:
        """Tokens before the next one: a number, or those of each row, (rows,)."""
        return self._held if self._lacking is None else self._held - self._lacking

    @property
    def _held(self) -> int:
        return 0 if self.keys is None else int(self.keys.shape[2])

    def make_mask(
        self, tokens: int, return_array: bool = False, window_size: int | None = None, **_: Any
    ) -> Any:
        """Stock's mask of a prompt, without a row's padding in front; none attends behind it."""
        held, window = self._held, {"window_size": window_size}
        if self._lacking is None:
            return self._masks.make_attention_mask(tokens, held, return_array, **window)
        return self._masks.create_causal_mask(tokens, held, left_padding=self._lacking, **window)

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Put the held tokens in front of the new K and V, and keep both."""
        if self.keys is not None:
            keys = self._core.concatenate([self.keys, keys], axis=2)
            values = self._core.concatenate([self.values, values], axis=2)
        self.keys, self.values = keys, values
        return keys, values

    def cut(self, tokens: int) -> None:
        """Keep so many tokens."""
        self.keys, self.values = self.keys[:, :, :tokens], self.values[:, :, :tokens]

    def of_row(self, row: int, tokens: slice) -> tuple[Any, Any]:
        """A row's keys and values, (1, n_kv_heads, tokens, head_dim)."""
        return self.keys[row : row + 1, :, tokens], self.values[row : row + 1, :, tokens]


def compute(core: Any, masks: Any, runner: Any, group: Group) -> list[Part]:
    """Build a group's passes, with stock's module of masks: each prompt's last part, its row."""
    layout, cache = runner._cache_layout, _filled(core, masks, runner, group)
    parts: list[list[Part]] = []
    begin = 0
    for lengths, tokens in group.passes:
        for layer in layout.auxiliary_layer_indices:
            cache[layer].lengths = None
            if min(lengths) < tokens:
                cache[layer].prepare(lengths=lengths)
        rows = [
            [*each.tokens[begin : begin + length], *[0] * (tokens - length)]
            for each, length in zip(group.prompts, lengths, strict=True)
        ]
        ids, logits = core.array(rows, core.int32), None
        is_last = len(parts) + 1 == len(group.passes)
        if is_last:
            logits = last_logits(core, runner.model, cache, ids, lengths)
        else:
            (runner._trunk or runner.model)(ids, cache=cache)
        parts.append(_parts(core, cache, group, begin, lengths, logits))
        begin += lengths[0]
        if not is_last:
            for layer in layout.attention_layer_indices:
                cache[layer].cut(group.behind + begin)
    if len(parts) == 1:
        return parts[0]
    return [replace(last, first=first) for first, last in zip(*parts, strict=True)]


def _filled(core: Any, masks: Any, runner: Any, group: Group) -> list[Any]:
    """Caches of all rows, with what is before the first computed token."""
    layout, cache = runner._cache_layout, runner._new_cache_skeleton()
    lacking = [group.behind - len(each.slots) for each in group.prompts]
    # Nothing attends to what the first slot holds for shorter prefixes.
    slots = [
        slot
        for few, each in zip(lacking, group.prompts, strict=True)
        for slot in (*[0] * few, *each.slots)
    ]
    of_pool = core.array(slots, core.int32)  # one array, which mlx.pool-write checks once

    def prefixes(layer: int) -> Any:
        if not slots:
            return None, None
        index = layout.full_kv_pool_index(layer)
        return (
            each.reshape(len(lacking), group.behind, *each.shape[1:]).transpose(0, 2, 1, 3)
            for each in runner._attention_kv_pool.get_kv(index, of_pool)
        )

    for layer in layout.attention_layer_indices:
        cache[layer] = Layer(core, masks, lacking, prefixes(layer))
    for layer in layout.auxiliary_layer_indices:
        rows = [each.states[layer] for each in group.prompts]
        cache[layer].cache = [_joined(core, each) for each in zip(*rows, strict=True)]
    return [*cache]


def _joined(core: Any, states: Sequence[Any]) -> Any:
    """One array of a recurrent layer's; None if the rows, all without prefixes, have none."""
    return None if states[0] is None else core.concatenate(states)


def _parts(
    core: Any, cache: Sequence[Any], group: Group, begin: int, lengths: Sequence[int], logits: Any
) -> list[Part]:
    """Each wanted row's part of a pass, `begin` tokens behind its first computed one."""
    parts = []
    for row, prompt in enumerate(group.prompts[: group.wanted]):
        start, end = prompt.start + begin, len(prompt.slots) + begin + lengths[row]
        lacking = group.behind - len(prompt.slots)
        # Gathered, as a slice would keep all rows in memory as long as a state of one is kept.
        at = core.array([row], core.int32)
        layers = [
            each.of_row(row, slice(lacking, lacking + end))
            if isinstance(each, Layer)
            else tuple(core.take(state, at, axis=0) for state in each.cache)
            for each in cache
        ]
        own = None if logits is None else logits[row : row + 1]
        parts.append(Part(start, end - start, layers, own))
    return parts


def last_logits(
    core: Any, model: Any, cache: Sequence[Any], ids: Any, lengths: Sequence[int]
) -> Any:
    """The logits of each row's last token, (rows, 1, vocabulary)."""
    last = core.array([each - 1 for each in lengths], core.int32)[:, None, None]

    def cut(hidden: Any) -> Any:
        return core.take_along_axis(hidden, last, axis=1)

    owner = owner_of_trunk(model)
    if owner is None:
        return cut(logits_of(model(ids, cache=cache)))
    trunk = CutTrunk(owner[TRUNK], cut)
    with in_place_of(owner, trunk):
        logits = logits_of(model(ids, cache=cache))
    return logits if trunk.hidden is not None else cut(logits)
