"""Which prompts of a batch are a group, and its forward passes, in which each is a row.

A recurrent state holds every token that went through it, so padding must not reach it. Each row
begins where its prefix ends: KV of shorter prefixes is padded on the left, and prompts behind their
last token. mlx-lm's caches tell recurrent layers how long each row is.

Stock computes a hybrid model's prompt in two parts if it keeps the state between them for later
prompts. So does a group, whose first parts have one length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..device import on_cpu
from ..trunk import cutting, logits_of, owner_of_trunk

MOST_PROMPTS = 8  # as many as mlx-lm's server takes together

MOST_TOKENS = 4096
"""Tokens of a group to compute, with padding. Longer prompts keep a device busy by themselves. The
memory of a forward pass depends on this number."""

MOST_KV = 4 * MOST_TOKENS  # tokens of a group, with padding and prefixes
MOST_ROUNDED = 2048  # tokens to compute of a group of rounded shape, which may be twice as many
STEP = 32  # tokens to which lengths are rounded
_PADDING = 4  # at most one in this many tokens of a group is padding
_BEHIND = 256  # prefixes of a group lie between the same multiples of this


@dataclass(frozen=True)
class Prompt:
    """A prompt to be put into a group."""

    request: str  # its id
    start: int  # tokens that stock would not compute
    slots: Sequence[int]  # the pool's, of the tokens before the computed ones, at most `start`
    tokens: Sequence[int]  # those to compute
    first: int  # how many of them its first part has; 0 if it has one part
    states: Mapping[int, Sequence[Any]]  # of each recurrent layer before the computed tokens


class Group:
    """Prompts that are computed together."""

    def __init__(self, prompts: Sequence[Prompt], *, rounds: bool) -> None:
        """With `rounds`, a small group has one of fewer shapes, as a device plans each new one."""
        self.wanted = rows = len(prompts)
        longest = max(len(each.tokens) for each in prompts)
        # Tokens before the first computed one, padding included.
        self.behind = max(len(each.slots) for each in prompts)
        step = 1
        if rounds:
            many = 1 << (rows - 1).bit_length()
            long, far = _rounded(longest, STEP), _rounded(self.behind, STEP)
            if many * long <= MOST_ROUNDED and many * (long + far) <= MOST_KV:
                rows, step, self.behind = many, STEP, far
        # Of each row; behind the `wanted` ones, copies of the first one.
        self.prompts = [*prompts, *[prompts[0]] * (rows - self.wanted)]
        lengths, first = [len(each.tokens) for each in self.prompts], prompts[0].first
        parts = [[first] * rows, [each - first for each in lengths]] if first else [lengths]
        # Of each forward pass: how many tokens each row has, and how many are computed.
        self.passes = [(each, _rounded(max(each), step)) for each in parts]
        self.trial: Trial | None = None  # of its rows

    def kind(self) -> str:
        """What of masks, positions and states the group needs, in words."""
        words = ["in two parts"] if len(self.passes) > 1 else []
        if any(min(lengths) < tokens for lengths, tokens in self.passes):
            words.append("padded")
        if self.behind:
            are_equal = all(len(each.slots) == self.behind for each in self.prompts)
            words.append(f"behind {'equal' if are_equal else 'unequal'} prefixes")
        return ", ".join(words) or "whole"

    def sizes(self) -> str:
        """What decides which kernels compute it: each size by its power of two, from 32 on."""
        words, before = [], self.behind
        for lengths, tokens in self.passes:
            rows = (1 << len(self.prompts).bit_length()) - 1
            behind = f", behind up to {_power(before)}" if before else ""
            words.append(f"up to {rows} rows of up to {_power(tokens)} tokens{behind}")
            before += lengths[0]
        return "; ".join(words)


@dataclass(eq=False)
class Trial:
    """Compares the rows of a group with what stock computes of its prompts, one by one."""

    kind: str  # what is tried
    what: str  # the group, in words
    wanted: int  # how many parts of prompts are to be compared
    parts: int = 0  # how many of them were
    pairs: list[tuple[Any, Any]] = field(default_factory=list)  # their arrays and stock's

    def note(self, part: Part, output: Any, cache: Sequence[Any]) -> None:
        """Keep what stock's model returned, and what its caches hold behind a part."""
        self.parts += 1
        if part.logits is not None:
            self.pairs.append((part.logits, logits_of(output)[:, -1:]))
        for arrays, of in zip(part.layers, cache, strict=True):
            if is_recurrent(of):
                self.pairs += zip(arrays, of.cache, strict=True)
                continue
            held = of.get_kv() if hasattr(of, "get_kv") else (of.keys, of.values)
            # Of a window, stock keeps the last tokens.
            self.pairs += [
                (mine[:, :, -its.shape[2] :], its) for mine, its in zip(arrays, held, strict=True)
            ]

    def are_near(self, core: Any, roundings: int) -> bool:
        """Whether all arrays differ by so many roundings of stock's largest value at most."""
        # What is computed with much rounding may be kept in a finer dtype.
        bound = roundings * max(_rounding(core, its.dtype) for _, its in self.pairs)
        near = []
        for mine, its in self.pairs:
            if mine.shape != its.shape:
                return False
            mine, its = mine.astype(core.float32), its.astype(core.float32)
            near.append(core.max(core.abs(mine - its)) <= bound * core.max(core.abs(its)))
        return bool(core.all(core.stack(near)).item())


@dataclass(frozen=True)
class Part:
    """A part of a prompt, computed but not evaluated."""

    start: int  # tokens before it
    tokens: int  # its own
    # What each layer holds after it: keys and values, (1, n_kv_heads, tokens, head_dim), or a
    # recurrent layer's arrays, (1, …).
    layers: Sequence[Sequence[Any]]
    logits: Any = None  # of its last token, (1, 1, vocabulary); None where nothing reads them
    trial: Trial | None = None  # of its group
    first: Part | None = None  # what stock computes of the prompt before it

    def fits(self, input_ids: Any, cache: Sequence[Any]) -> bool:
        """Whether a call of the model, for this request, asks for what was computed."""
        offset = next(each.offset for each in cache if not is_recurrent(each))
        return bool(input_ids.shape == (1, self.tokens) and offset == self.start)

    def answer(self, model: Callable[..., Any], input_ids: Any, *, cache: Sequence[Any]) -> Any:
        """Fill a request's caches, and return the logits; in a trial, call stock's model."""
        if self.trial is not None:
            output = model(input_ids, cache=cache)
            self.trial.note(self, output, cache)
            return output
        for arrays, of in zip(self.layers, cache, strict=True):
            if is_recurrent(of):
                of.cache = list(arrays)
                continue
            new = [each[:, :, self.start :] for each in arrays]
            if hasattr(of, "_full_keys"):
                # What its own `update_and_fetch` leaves; prefix and prompt are joined already.
                of.offset = arrays[0].shape[2]
                of._full_keys, of._full_values = arrays
                of._new_keys, of._new_values = new
            else:
                of.update_and_fetch(*new)
        return input_ids if self.logits is None else self.logits  # nobody reads the former


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

    def make_mask(self, tokens: int, return_array=False, window_size=None, **_) -> Any:
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


def groups(prompts: Sequence[Prompt]) -> list[list[Prompt]]:
    """Groups of two and more prompts with like prefixes and like numbers of tokens.

    First parts of a group have one length. Prompts that are in no group are computed one by one.
    """
    alike: dict[tuple[int, int], list[Prompt]] = {}
    for prompt in prompts:
        behind = _rounded(len(prompt.slots), _BEHIND)
        alike.setdefault((prompt.first, behind), []).append(prompt)
    chosen: list[list[Prompt]] = []
    for (_, behind), each in alike.items():
        chosen.append([])
        # Longest first, so that what the others are padded to is known from the first one on.
        for prompt in sorted(each, key=lambda prompt: -len(prompt.tokens)):
            if not _is_group([*chosen[-1], prompt], behind):
                chosen.append([])
            chosen[-1].append(prompt)
    return [group for group in chosen if len(group) > 1]


def _is_group(prompts: Sequence[Prompt], behind: int) -> bool:
    computed = len(prompts) * len(prompts[0].tokens)
    needless = computed - sum(len(prompt.tokens) for prompt in prompts)
    return (
        len(prompts) <= MOST_PROMPTS
        and computed <= MOST_TOKENS
        and computed + len(prompts) * behind <= MOST_KV
        and needless * _PADDING <= computed
    )


def _rounded(tokens: int, step: int) -> int:
    return -(-tokens // step) * step


def _power(tokens: int) -> int:
    return (1 << max(tokens, STEP - 1).bit_length()) - 1


def compute(core: Any, masks: Any, runner: Any, group: Group) -> list[Part]:
    """Build a group's passes, with stock's module of masks: each prompt's last part, its row."""
    layout, cache = runner._cache_layout, _filled(core, masks, runner, group)
    parts: list[Part] = []
    begin = 0
    for number, (lengths, tokens) in enumerate(group.passes, 1):
        for layer in layout.attention_layer_indices if parts else ():
            cache[layer].cut(group.behind + begin)
        for layer in layout.auxiliary_layer_indices:
            cache[layer].lengths = None
            if min(lengths) < tokens:
                cache[layer].prepare(lengths=lengths)
        rows = [
            [*each.tokens[begin : begin + length], *[0] * (tokens - length)]
            for each, length in zip(group.prompts, lengths, strict=True)
        ]
        ids, logits = core.array(rows, core.int32), None
        if number == len(group.passes):
            logits = _last_logits(core, runner.model, cache, ids, lengths)
        else:
            (runner._trunk or runner.model)(ids, cache=cache)
        parts = _parts(core, cache, group, begin, lengths, logits, parts)
        begin += lengths[0]
    return parts


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
    core, cache, group: Group, begin: int, lengths: Sequence[int], logits, firsts: Sequence[Part]
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
        first = firsts[row] if firsts else None
        parts.append(Part(start, end - start, layers, own, group.trial, first))
    return parts


def _last_logits(core, model, cache, ids, lengths: Sequence[int]) -> Any:
    """The logits of each row's last token, (rows, 1, vocabulary)."""
    last = core.array([each - 1 for each in lengths], core.int32)[:, None, None]

    def cut(hidden: Any) -> Any:
        return core.take_along_axis(hidden, last, axis=1)

    owner = owner_of_trunk(model)
    if owner is None:
        return cut(logits_of(model(ids, cache=cache)))
    with cutting(owner, cut) as trunk:
        logits = logits_of(model(ids, cache=cache))
    return logits if trunk.hidden is not None else cut(logits)


def is_recurrent(cache: Any) -> bool:
    """Whether a layer's cache is mlx-lm's for recurrent states, which can be told lengths."""
    return hasattr(cache, "lengths") and isinstance(getattr(cache, "cache", None), list)


def _rounding(core: Any, dtype: Any) -> float:
    """By which part rounding changes a value at most; GPUs may multiply float32 as TF32."""
    if dtype == core.float32 and on_cpu(core):
        return 2**-24
    return 2**-8 if dtype == core.bfloat16 else 2**-11
