"""Compares the greedy tokens of fixed prompts between stock and patched servers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from . import BenchError, client
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
    """The tokens of all boots compared.

    Attributes:
        word: ``equal``; ``different``: stock's boots agree on a prompt, but a patched boot gives
            other tokens; ``unsteady``: stock's own boots agree on no prompt.
        unsteady: the number of prompts on which stock's own boots differ.
        different: the prompts, by number, on which the sides differ.
    """

    word: str
    sentence: str
    prompts: int
    unsteady: int
    different: tuple[int, ...]


def prompts() -> list[list[int]]:
    """The prompts as token ids: always the same, of different lengths.

    They are ids because a tokenizer could turn different texts into the same ids.
    """
    rng = random.Random(20)  # noqa: S311 - not a secret
    count = _ALONE + _TOGETHER
    return [rng.choices(_IDS, k=_LENGTHS[number % len(_LENGTHS)]) for number in range(count)]


def greedy(served: ServerCommand) -> Tokens:
    """The server's greedy tokens: some prompts one by one, then the others all at once.

    Raises:
        BenchError: it did not answer a prompt.
    """
    asked = prompts()
    replies = [_reply(served, prompt) for prompt in asked[:_ALONE]]
    threads = ThreadPoolExecutor(max_workers=_TOGETHER)
    try:
        replies += threads.map(lambda prompt: _reply(served, prompt), asked[_ALONE:])
    finally:
        # An interrupt does not wait for replies: it ends the server, and so the threads.
        threads.shutdown(wait=False, cancel_futures=True)
    return tuple(replies)


def compare(stock: Sequence[Tokens], patched: Sequence[Tokens], base: str = "stock") -> Comparison:
    """Compare the boots of two sides, at least one each; `base` is the first side's name."""
    count = len(stock[0])
    unsteady = {at for at in range(count) if len({boot[at] for boot in stock}) > 1}
    different = tuple(
        at
        for at in range(count)
        if at not in unsteady and any(boot[at] != stock[0][at] for boot in patched)
    )
    asked = _prompts(count - len(unsteady))
    if different:
        word, sentence = "different", f"different for {len(different)} of {asked}"
    elif len(unsteady) == count:
        each = f"each of {_prompts(count)}"
        word, sentence = "unsteady", f"{base}'s own boots gave different tokens for {each}"
    else:
        word, sentence = "equal", f"equal for {asked} in {len(stock) + len(patched)} boots"
    if 0 < len(unsteady) < count:
        sentence += f"; of {len(unsteady)} more, {base}'s own boots gave different tokens"
    return Comparison(word, sentence, count, len(unsteady), different)


def _prompts(count: int) -> str:
    return f"{count} prompt{'' if count == 1 else 's'}"


def _reply(served: ServerCommand, prompt: Sequence[int]) -> tuple[int, ...]:
    greedy = {"temperature": 0, "max_new_tokens": _NEW_TOKENS, "ignore_eos": True}
    reply = client.request(served, "/generate", {"input_ids": prompt, "sampling_params": greedy})
    ids = reply.get("output_ids") if isinstance(reply, dict) else None
    if not isinstance(ids, list) or not ids:
        raise BenchError("/generate gave no tokens")
    return tuple(int(id) for id in ids)
