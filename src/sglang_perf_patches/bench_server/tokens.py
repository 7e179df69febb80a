"""Greedy tokens of fixed prompts: whether patched and stock servers give the same."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

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
        word: ``equal``; ``different``: stock's boots agree on a prompt and a patched one does not
            give their tokens; ``unsteady``: stock's own boots agree on no prompt.
        sentence: the same, with numbers.
        prompts: how many were compared.
        unsteady: of how many stock's own boots gave different tokens.
        different: the numbers of the prompts on which the sides differ.
    """

    word: str
    sentence: str
    prompts: int
    unsteady: int
    different: tuple[int, ...]


def prompts() -> list[list[int]]:
    """The prompts' token ids, the same every time, of unequal lengths.

    Ids, not text: a model's tokenizer could make the same of several texts.
    """
    rng = random.Random(20)  # noqa: S311 - not a secret
    count = _ALONE + _TOGETHER
    return [rng.choices(_IDS, k=_LENGTHS[number % len(_LENGTHS)]) for number in range(count)]


def of(served: ServerCommand) -> Tokens:
    """The server's tokens: some prompts one after another, then the others all at once.

    Raises:
        BenchError: it did not answer one of them.
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
    """Compare boots; each side has at least one. `base` is what the first side is called."""
    count = len(stock[0])
    unsteady = {at for at in range(count) if len({boot[at] for boot in stock}) > 1}
    different = tuple(
        at
        for at in range(count)
        if at not in unsteady and any(boot[at] != stock[0][at] for boot in patched)
    )
    boots = len(stock) + len(patched)
    left_out = (
        f"; of {len(unsteady)} more, {base}'s own boots gave different tokens" if unsteady else ""
    )
    if different:
        sentence = f"different for {len(different)} of {_prompts(count - len(unsteady))}{left_out}"
        return Comparison("different", sentence, count, len(unsteady), different)
    if len(unsteady) == count:
        sentence = f"{base}'s own boots gave different tokens for each of {_prompts(count)}"
        return Comparison("unsteady", sentence, count, count, ())
    sentence = f"equal for {_prompts(count - len(unsteady))} in {boots} boots{left_out}"
    return Comparison("equal", sentence, count, len(unsteady), ())


def _prompts(count: int) -> str:
    return f"{count} prompt{'' if count == 1 else 's'}"


def _reply(served: ServerCommand, prompt: Sequence[int]) -> tuple[int, ...]:
    (reply,) = client.generated(served, _body(prompt))
    ids = reply.get("output_ids")
    if not isinstance(ids, list) or not ids:
        raise BenchError("/generate gave no tokens")
    return tuple(int(id) for id in ids)


def _body(prompt: Sequence[int]) -> Mapping[str, Any]:
    return {
        "input_ids": list(prompt),
        "sampling_params": {
            "temperature": 0,
            "max_new_tokens": _NEW_TOKENS,
            "ignore_eos": True,
        },
    }
