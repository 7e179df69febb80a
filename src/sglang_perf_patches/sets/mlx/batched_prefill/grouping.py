"""Which prompts of a batch are computed together, and in which shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
