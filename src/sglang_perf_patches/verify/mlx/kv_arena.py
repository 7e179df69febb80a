"""Decode steps equal stock's when requests join, leave, reorder, grow, continue or share a prefix.

A step is served by an arena, or counted as one that is left to stock.
"""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import mlx.core as mx

from ...sets.mlx.device import is_proven
from ...sets.mlx.kv_arena import body
from ...sets.mlx.kv_arena.arena import COUNTS
from .. import Inputs
from ..comparing import require, some
from . import cases, equivalence, models
from .cases import Step
from .equivalence import FEW, further_models
from .models import Model

PATCH = "mlx.kv-arena"

SCRIPTED = [cases.SCRIPTED, cases.GROWING, cases.EXTENDING, cases.CHANGING]


def batches(inputs: Inputs) -> int:
    """Batches that grow and change; arenas handle most of their steps."""
    with models.model("qwen3", "float32") as model:
        compared = same_steps(model, [*SCRIPTED, *inputs(cases.random_schedule)])
    most = not is_proven(mx) or COUNTS["steps"] >= 2 * COUNTS["stock steps"]
    require(most, f"{PATCH}: {dict(COUNTS)}")
    return compared


def settling(inputs: Inputs) -> int:
    """Batches that change at every step and settle; some rows are copied back."""
    with models.model("qwen3", "float32") as model:
        compared = same_steps(model, _settling(inputs))
    parted = not is_proven(mx) or COUNTS["partings"]
    require(parted, f"{PATCH}: no rows were copied back, {dict(COUNTS)}")
    return compared


def prefix_hits(inputs: Inputs) -> int:
    """Prompts whose prefix is in the pool, with random episodes."""
    hits = [*hitting(inputs), cases.FAR, *inputs(cases.random_episodes)]
    with models.model("qwen3", "float32") as model:
        return same_steps(model, hits, radix=True)


def bfloat16(inputs: Inputs) -> int:
    """The same schedules in the dtype of most models."""
    drawn = inputs(cases.random_schedule)[:FEW]
    schedules = [*some(inputs, SCRIPTED), *drawn, *some(inputs, _settling(inputs)[:FEW])]
    with models.model("qwen3", "bfloat16") as model:
        return same_steps(model, schedules)


def other_layers(inputs: Inputs) -> int:
    """Models with recurrent states and with sliding windows."""
    drawn = inputs(cases.random_schedule)[:FEW]
    compared = 0
    for name in some(inputs, further_models()):
        with models.model(name, "float32") as model:
            compared += same_steps(model, [*SCRIPTED[:2], *drawn, *_settling(inputs)[:FEW]])
    return compared


def unproven_device(inputs: Inputs) -> int:
    """On a device treated as unproven: the results are equal, and then arenas take over."""
    drawn = inputs(cases.random_schedule)[:FEW]
    schedules = [cases.SCRIPTED, cases.GROWING, *drawn, *hitting(inputs)[:FEW]]
    COUNTS.clear()
    with (
        models.model("qwen3", "float32") as model,
        mock.patch.object(body, "is_proven", return_value=False),
    ):
        compared = equivalence.same(PATCH, model, schedules, radix=True)
    tried = COUNTS["tried steps"] and COUNTS["steps"]
    require(tried, f"{PATCH}: on an unproven device {dict(COUNTS)}")
    return compared


def same_steps(model: Model, schedules: Sequence[Sequence[Step]], **kwargs: bool) -> int:
    """Run schedules; each batched step runs in an arena or is counted as stock's."""
    COUNTS.clear()
    compared = equivalence.same(PATCH, model, schedules, **kwargs)
    steps = sum(map(cases.batched_steps, schedules)) if compared else 0
    counted = COUNTS["steps"] + COUNTS["stock steps"] == steps
    require(counted, f"{PATCH}: {dict(COUNTS)} in {steps} steps of two or more requests")
    return compared


def _settling(inputs: Inputs) -> list[tuple[Step, ...]]:
    return [cases.SETTLING, *inputs(cases.random_changes)]


def hitting(inputs: Inputs) -> list[tuple[Step, ...]]:
    """Schedules whose prompts have prefixes in the pool."""
    return [cases.HITTING, *inputs(cases.random_hits)]


CHECKS = {
    "batches": batches,
    "settling": settling,
    "prefix hits": prefix_hits,
    "bfloat16": bfloat16,
    "other layers": other_layers,
    "an unproven device": unproven_device,
}
