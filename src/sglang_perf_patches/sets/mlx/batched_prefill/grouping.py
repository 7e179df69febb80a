"""Which prompts of a batch are computed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_PROMPTS = 8
"""As many as mlx-lm's server takes together."""

MOST_TOKENS = 4096
"""Of a group, padding included: longer prompts keep a device busy by themselves, and the memory of
a forward pass follows this number."""

_PADDING = 4
"""A group's padding is at most a part of its tokens: one in so many."""


@dataclass(frozen=True)
class Prompt:
    """What a group is chosen by.

    Attributes:
        number: its place in the batch.
        prefix: tokens whose KV is in the pool.
        tokens: tokens to compute.
    """

    number: int
    prefix: int
    tokens: int


def groups(prompts: Sequence[Prompt]) -> list[list[Prompt]]:
    """Groups of two and more prompts, each with one prefix length and like numbers of tokens.

    Each prompt is in one group at most. A group holds up to `MOST_PROMPTS` prompts, and up to
    `MOST_TOKENS` tokens of which at most a quarter are padding. Prompts that are in none are
    computed alone.
    """
    chosen: list[list[Prompt]] = []
    group: list[Prompt] = []
    # Longest first, so that a group's first prompt is what the others are padded to.
    ordered = sorted(prompts, key=lambda prompt: (prompt.prefix, -prompt.tokens, prompt.number))
    for prompt in ordered:
        if group and not _joins(prompt, group):
            chosen.append(group)
            group = []
        group.append(prompt)
    return [each for each in (*chosen, group) if len(each) > 1]


def _joins(prompt: Prompt, group: Sequence[Prompt]) -> bool:
    longest = group[0].tokens
    padded = longest * (len(group) + 1)
    padding = padded - sum(each.tokens for each in group) - prompt.tokens
    return (
        prompt.prefix == group[0].prefix
        and len(group) < MOST_PROMPTS
        and padded + len(group) * prompt.prefix + prompt.prefix <= MOST_TOKENS
        and padding * _PADDING <= padded
    )
