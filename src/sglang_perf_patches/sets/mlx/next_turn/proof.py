"""Conversations are equal bit by bit where stock reads the same tokens' KV from the pool.

With a sliding window stock recomputes all these tokens at once; there the logits are close.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import mlx.core as mx

from ....proof import Inputs
from ....proof.comparing import live, require, require_same, some
from ....proof.mlx import cases, models
from ....proof.mlx.alike import can_sample, further_models, same
from ....proof.mlx.cases import Step
from ....proof.mlx.models import Model
from ....proof.mlx.rig import Player
from .body import COUNTS

PATCH = "mlx.next-turn"

DTYPES = ("float32", "bfloat16")


def conversations(inputs: Inputs) -> int:
    """Turns of conversations, some of which must have been continued."""
    COUNTS.clear()
    compared = 0
    for dtype in some(inputs, DTYPES):
        with models.model("qwen3", dtype) as made:
            compared += same(PATCH, made, _hits(inputs), radix=True)
    require(COUNTS["continued"], f"{PATCH}: {dict(COUNTS)}")
    return compared


def beside_others(inputs: Inputs) -> int:
    """The same, with the patches that change the buffers too."""
    hits = _hits(inputs)
    compared = 0
    for dtype in some(inputs, DTYPES):
        with models.model("qwen3", dtype) as made:
            expected = [asdict(Player(made, radix=True).play(schedule)) for schedule in hits]
            with live(PATCH, beside=("mlx.kv-arena", "mlx.first-buffer")):
                found = [asdict(Player(made, radix=True).play(schedule)) for schedule in hits]
            require_same(f"{PATCH}, beside other patches", expected, found)
            compared += len(hits)
    return compared


def sampled(_: Inputs) -> int:
    """Sampled tokens, where the release samples."""
    if not can_sample():
        return 0
    with models.model("qwen3", "float32") as made:
        return same(PATCH, made, [cases.TALKING], radix=True, sampling=True)


def window(_: Inputs) -> int:
    """A model with a sliding window, where the release serves one.

    Some next prompts are without replies that are longer than the window.
    """
    if "gpt_oss" not in further_models():
        return 0
    compared = 0
    with models.model("gpt_oss", "float32") as made:
        for schedule, count in ((cases.TALKING, "continued"), (cases.THINKING, "rewound")):
            COUNTS.clear()
            expected = _logits(made, schedule)
            with live(PATCH):
                found = _logits(made, schedule)
            for number, (one, other) in enumerate(zip(expected, found, strict=True)):
                close = bool(mx.allclose(one, other, rtol=1e-4, atol=1e-4).item())
                require(close, f"{PATCH}, with a window: logits {number} are not close")
            require(COUNTS[count], f"{PATCH}: no turn was {count} with a window")
            compared += len(found)
    return compared


def _hits(inputs: Inputs) -> list[tuple[Step, ...]]:
    hits = [cases.HITTING, cases.TALKING, *inputs(cases.random_hits)]
    return hits + inputs(cases.random_episodes)


def _logits(made: Model, schedule: Sequence[Step]) -> list[mx.array]:
    """The logits of each forward pass."""
    found: list[mx.array] = []
    player = Player(made, radix=True)
    player.note = found.append
    player.play(schedule)
    return found


CHECKS = {
    "conversations": conversations,
    "beside other patches": beside_others,
    "sampled": sampled,
    "with a window": window,
}
