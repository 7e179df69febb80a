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
        with models.model("qwen3", dtype) as model:
            compared += same(PATCH, model, _hits(inputs), radix=True)
    require(COUNTS["continued"], f"{PATCH}: {dict(COUNTS)}")
    return compared


def beside_others(inputs: Inputs) -> int:
    """The same, with the patches that change the buffers too."""
    hits = _hits(inputs)
    compared = 0
    for dtype in some(inputs, DTYPES):
        with models.model("qwen3", dtype) as model:
            expected = [asdict(Player(model, radix=True).play(schedule)) for schedule in hits]
            with live(PATCH, beside=("mlx.kv-arena", "mlx.first-buffer")):
                actual = [asdict(Player(model, radix=True).play(schedule)) for schedule in hits]
            require_same(f"{PATCH}, beside other patches", expected, actual)
            compared += len(hits)
    return compared


def sampled(_: Inputs) -> int:
    """Sampled tokens, where the release samples."""
    if not can_sample():
        return 0
    with models.model("qwen3", "float32") as model:
        return same(PATCH, model, [cases.TALKING], radix=True, sampling=True)


def window(_: Inputs) -> int:
    """A model with a sliding window, where the release serves one.

    Some next prompts are without replies that are longer than the window.
    """
    if "gpt_oss" not in further_models():
        return 0
    compared = 0
    with models.model("gpt_oss", "float32") as model:
        for schedule, count in ((cases.TALKING, "continued"), (cases.THINKING, "rewound")):
            COUNTS.clear()
            expected = _logits(model, schedule)
            with live(PATCH):
                actual = _logits(model, schedule)
            for number, (one, other) in enumerate(zip(expected, actual, strict=True)):
                close = bool(mx.allclose(one, other, rtol=1e-4, atol=1e-4).item())
                require(close, f"{PATCH}, with a window: logits {number} are not close")
            require(COUNTS[count], f"{PATCH}: no turn was {count} with a window")
            compared += len(actual)
    return compared


def _hits(inputs: Inputs) -> list[tuple[Step, ...]]:
    hits = [cases.HITTING, cases.TALKING, *inputs(cases.random_hits)]
    return hits + inputs(cases.random_episodes)


def _logits(model: Model, schedule: Sequence[Step]) -> list[mx.array]:
    """The logits of each forward pass."""
    logits: list[mx.array] = []
    player = Player(model, radix=True)
    player.note = logits.append
    player.play(schedule)
    return logits


CHECKS = {
    "conversations": conversations,
    "beside other patches": beside_others,
    "sampled": sampled,
    "with a window": window,
}
