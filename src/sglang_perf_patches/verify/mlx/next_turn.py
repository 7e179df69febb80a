"""Turns of conversations with a sliding window, and full attention, which is stock's.

Stock computes all tokens of a conversation at once, and the patch turn by turn, so the logits are
close, not equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ...sets.mlx.next_turn.body import COUNTS
from .. import Inputs
from ..comparing import live, require
from . import cases, models
from .cases import Step, schedule
from .equivalence import FEW, same, with_logits

PATCH = "mlx.next-turn"

OTHERS = schedule(
    """
    join a 12, decode a 3, leave a, join f 6, extend f 6, decode f 2, leave f, join x 9, decode x,
    hit b a 1 30, hit c a 11 6, hit d a 5 20, hit g f 8 9, decode bcdg
    """
)
"""Prompts that share a token, all but the last, or a first chunk with an earlier, short one."""

NEXT = schedule("hit e a 14 12, hit h f 13 9, chain ehx 3")
"""Then the next turns of the earlier ones."""


def conversations(_: Inputs) -> int:
    """Some turns go on where the last one ended, and some from the end of its prompt."""
    return _close(cases.TALKING, "continued") + _close(cases.THINKING, "rewound")


def random_episodes(inputs: Inputs) -> int:
    """Prompts with prefixes that others left, chunks, aborts, and cleared caches."""
    return sum(_close(episode) for episode in inputs(cases.random_episodes)[:FEW])


def sharing(_: Inputs) -> int:
    """A turn waits for its own conversation, whatever else shares the beginning of its prompt."""
    compared = _close(OTHERS)
    require(not COUNTS["continued"], f"{PATCH}, another conversation: {dict(COUNTS)}")
    compared += _close((*OTHERS, *NEXT), "continued")
    require(COUNTS["continued"] == 2, f"{PATCH}: {dict(COUNTS)}")
    return compared


def beside_others(_: Inputs) -> int:
    """The same, with the patches that change the buffers too."""
    beside = ("mlx.pool-write", "mlx.kv-arena", "mlx.first-buffer")
    return _close(cases.TALKING, "continued", beside=beside)


def full_attention(_: Inputs) -> int:
    """The radix cache has the last turn, and stock's code runs."""
    COUNTS.clear()
    with models.model("qwen3", "float32") as model:
        compared = sum(
            same(PATCH, model, [cases.TALKING], radix=True, sampling=sampling, ran=False)
            for sampling in (False, True)
        )
    require(not COUNTS, f"{PATCH}: {dict(COUNTS)}")
    return compared


def _close(schedule: Sequence[Step], count: str = "", *, beside: Sequence[str] = ()) -> int:
    """The logits of each forward pass of a model with windows, stock's and patched.

    Args:
        schedule: what is played.
        count: what must have been counted.
        beside: patches that are live too.
    """
    with models.model("gpt_oss", "float32") as model:
        COUNTS.clear()
        _, expected = with_logits(model, schedule, radix=True)
        with live(PATCH, beside=beside, ran=True if count else None):
            _, actual = with_logits(model, schedule, radix=True)
    require(len(expected) == len(actual), f"{PATCH}: another number of forward passes")
    for number, (one, other) in enumerate(zip(expected, actual, strict=True)):
        close = bool(mx.allclose(one, other, rtol=1e-4, atol=1e-4).item())
        require(close, f"{PATCH}: logits {number} are not close")
    require(not count or COUNTS[count], f"{PATCH}: no turn was {count}")
    return len(actual)


CHECKS = {
    "conversations": conversations,
    "random episodes": random_episodes,
    "a shared beginning": sharing,
    "beside other patches": beside_others,
    "full attention": full_attention,
}
