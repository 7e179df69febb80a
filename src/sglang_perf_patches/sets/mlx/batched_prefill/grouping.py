"""Which prompts of a batch are computed together, and in which shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_PROMPTS = 8
"""As many as mlx-lm's server takes together."""

MOST_TOKENS = 4096
"""Tokens of a group, with padding, and with prefixes except of hybrids. Longer prompts keep a
device busy by themselves. The memory of a forward pass depends on this number."""

MOST_ROUNDED = 2048
"""The same of a group whose shape is rounded, which may double what is computed."""

_PADDING = 4
"""At most one in this many tokens of a group is padding."""

_ALIKE = 8
"""Prefixes are alike that differ by a part of the new tokens: one in so many. Prompts that have
nothing else in common often share their first token."""

_BEHIND = 256
"""Prefixes of a hybrid model's group lie between the same multiples of this."""

MOST_KV = 4 * MOST_TOKENS
"""Tokens of a hybrid model's group, with prefixes: one layer of three to eight has KV."""

STEP = 32
"""Tokens to which lengths are rounded."""


@dataclass(frozen=True)
class Prompt:
    """A prompt to be put into a group.

    Attributes:
        number: its place in the batch.
        prefix: tokens whose KV is in the pool.
        tokens: tokens to compute.
    """

    number: int
    prefix: int
    tokens: int

    @property
    def end(self) -> int:
        """Tokens of the whole prompt."""
        return self.prefix + self.tokens


@dataclass(frozen=True)
class Shape:
    """The size of a group's forward pass.

    Attributes:
        rows: prompts, and copies of the first one.
        prefix: tokens of each row that come from the pool; the rest of a longer prefix is computed.
        tokens: tokens of each row that are computed, padding included.
    """

    rows: int
    prefix: int
    tokens: int

    def kind(self) -> str:
        """What decides which kernels compute it: each size by its power of two, from 32 on."""
        rows, prefix, tokens = self.rows, max(self.prefix, STEP - 1), max(self.tokens, STEP - 1)
        rows, prefix, tokens = ((1 << each.bit_length()) - 1 for each in (rows, prefix, tokens))
        behind = f", behind up to {prefix}" if self.prefix else ""
        return f"up to {rows} rows of up to {tokens} tokens{behind}"

    def rounded(self) -> Shape:
        """One of fewer shapes, for a device that has to plan each new one; or this, if too long."""
        prefix = self.prefix // STEP * STEP
        tokens = -(-(self.prefix + self.tokens - prefix) // STEP) * STEP
        rows = 1 << (self.rows - 1).bit_length()
        return Shape(rows, prefix, tokens) if rows * (prefix + tokens) <= MOST_ROUNDED else self


def groups(prompts: Sequence[Prompt], most: int = MOST_TOKENS) -> list[list[Prompt]]:
    """Groups of two and more prompts with like prefixes and like numbers of tokens.

    Each prompt is in one group at most. A group holds up to `MOST_PROMPTS` prompts, up to
    `MOST_TOKENS` tokens to compute, and up to `most` with prefixes. At most a quarter of the work
    is padding, or in the pool already. Prompts that are in no group are computed one by one.
    """
    return [
        group
        for alike in _with_like_prefixes(prompts)
        for group in _with_like_ends(alike, most)
        if len(group) > 1
    ]


def of_hybrids(prompts: Iterable[tuple[int, int, int, int]]) -> list[list[Prompt]]:
    """Groups of a hybrid model's prompts, whose prefixes are not computed again.

    Prefixes of a group are padded to one length. First parts of a group have one length.

    Args:
        prompts: of each its number, its prefix, its new tokens, and those of its first part.
    """
    alike: dict[int, list[Prompt]] = {}
    for number, prefix, tokens, first in prompts:
        behind = -(-prefix // _BEHIND) * _BEHIND
        alike.setdefault(first, []).append(Prompt(number, behind, tokens))
    return [group for each in alike.values() for group in groups(each, MOST_KV)]


def shape(group: Sequence[Prompt]) -> Shape:
    """The least shape that holds a group."""
    prefix = min(prompt.prefix for prompt in group)
    return Shape(len(group), prefix, max(prompt.end for prompt in group) - prefix)


def _with_like_prefixes(prompts: Sequence[Prompt]) -> list[list[Prompt]]:
    alike: list[list[Prompt]] = []
    for prompt in sorted(prompts, key=lambda prompt: (prompt.prefix, prompt.number)):
        if alike and (prompt.prefix - alike[-1][0].prefix) * _ALIKE <= prompt.tokens:
            alike[-1].append(prompt)
        else:
            alike.append([prompt])
    return alike


def _with_like_ends(prompts: Sequence[Prompt], most: int) -> list[list[Prompt]]:
    chosen: list[list[Prompt]] = []
    # Longest first, so that what the others are padded to is known from a group's first prompt on.
    for prompt in sorted(prompts, key=lambda prompt: (-prompt.end, prompt.number)):
        if chosen and _is_group([*chosen[-1], prompt], most):
            chosen[-1].append(prompt)
        else:
            chosen.append([prompt])
    return chosen


def _is_group(prompts: Sequence[Prompt], most: int) -> bool:
    of = shape(prompts)
    computed = of.rows * of.tokens
    needless = computed - sum(prompt.tokens for prompt in prompts)
    return (
        of.rows <= MOST_PROMPTS
        and computed <= MOST_TOKENS
        and of.rows * (of.prefix + of.tokens) <= most
        and needless * _PADDING <= computed
    )
