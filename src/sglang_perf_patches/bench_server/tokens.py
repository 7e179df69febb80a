"""Compares the greedy tokens of fixed prompts between stock and patched servers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from . import BenchError
from .command import ServerCommand

_NEW_TOKENS = 48
_ALONE = 4
_TOGETHER = 12
# Every vocabulary has these tokens; the first ones are mostly special.
_IDS = range(16, 500)
_LENGTHS = (5, 24, 70, 160)

Tokens = tuple[tuple[int, ...], ...]
"""The new tokens of each prompt, in a fixed order."""


@dataclass(frozen=True)
class Comparison:
    """The tokens of all boots compared, in a sentence and a word.

    ``different``: stock's boots agree on a prompt, but a patched boot gives other tokens.
    ``unsteady``: stock's own boots agree on no prompt. Else ``equal``.
    """

    word: Literal["equal", "different", "unsteady"]
    sentence: str


def prompts() -> list[list[int]]:
    """The prompts, always the same; as ids, because different texts may have the same tokens."""
    rng = random.Random(20)  # noqa: S311 - not a secret
    count = _ALONE + _TOGETHER
    return [rng.choices(_IDS, k=_LENGTHS[number % len(_LENGTHS)]) for number in range(count)]


def greedy(served: ServerCommand) -> Tokens:
    """The server's greedy tokens: some prompts one by one, then the others all at once."""

    def reply(prompt: Sequence[int]) -> tuple[int, ...]:
        sampling = {"temperature": 0, "max_new_tokens": _NEW_TOKENS, "ignore_eos": True}
        body = {"input_ids": prompt, "sampling_params": sampling}
        ids = served.request("/generate", body).get("output_ids")
        if not ids:
            raise BenchError("/generate gave no tokens")
        return tuple(ids)

    asked = prompts()
    replies = [reply(prompt) for prompt in asked[:_ALONE]]
    threads = ThreadPoolExecutor(max_workers=_TOGETHER)
    try:
        replies += threads.map(reply, asked[_ALONE:])
    finally:
        # An interrupt does not wait for replies: it ends the server, and so the threads.
        threads.shutdown(wait=False, cancel_futures=True)
    return tuple(replies)


def compare(stock: Sequence[Tokens], patched: Sequence[Tokens], base: str = "stock") -> Comparison:
    """Compare the boots of two sides, at least one each; `base` is the first side's name."""
    count = len(stock[0])
    steady = [at for at in range(count) if len({boot[at] for boot in stock}) == 1]
    different = sum(any(boot[at] != stock[0][at] for boot in patched) for at in steady)
    if not steady:
        sentence = f"{base}'s own boots gave different tokens for each of {count} prompts"
        return Comparison("unsteady", sentence)
    of = f"{len(steady)} prompt{'s' if len(steady) > 1 else ''}"
    more = count - len(steady)
    rest = f"; of {more} more, {base}'s own boots gave different tokens" if more else ""
    if different:
        return Comparison("different", f"different for {different} of {of}{rest}")
    return Comparison("equal", f"equal for {of} in {len(stock) + len(patched)} boots{rest}")
