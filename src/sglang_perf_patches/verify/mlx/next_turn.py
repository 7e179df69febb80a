"""The turns of sliding-window conversations get logits close to those of one long prefill.

They can't be equal: stock computes all of a conversation at once, and the patch turn by turn.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ...sets.mlx.next_turn.body import COUNTS
from .. import Inputs
from ..comparing import live, require
from . import cases, models
from .cases import Step
from .equivalence import with_logits
from .rig import Player

PATCH = "mlx.next-turn"


def conversations(_: Inputs) -> int:
    """Some turns continue where the last one ended, and some from the end of its prompt."""
    return close(cases.TALKING, "continued") + close(cases.THINKING, "rewound")


def close(schedule: Sequence[Step], count: str = "", *, beside: Sequence[str] = ()) -> int:
    """Compare all logits, with others live `beside`; `count` names what must have been counted."""
    with models.model("gpt_oss", "float32") as model:
        COUNTS.clear()
        _, expected = with_logits(Player(model, radix=True), schedule)
        with live(PATCH, beside=beside, ran=True if count else None):
            _, actual = with_logits(Player(model, radix=True), schedule)
    require(len(expected) == len(actual), f"{PATCH}: another number of forward passes")
    for number, (one, other) in enumerate(zip(expected, actual, strict=True)):
        close = bool(mx.allclose(one, other, rtol=1e-4, atol=1e-4).item())
        require(close, f"{PATCH}: logits {number} are not close")
    require(not count or COUNTS[count], f"{PATCH}: no turn was {count}")
    return len(actual)


CHECKS = {"conversations": conversations}
