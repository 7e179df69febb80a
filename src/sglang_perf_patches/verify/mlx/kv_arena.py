"""Joins, leaves, reorders, chained steps, growth, extension and prefix hits are stock's.

Where a step fails, or buffers end, it is as if nothing had happened. A step is served by an arena,
or counted as one that is left to stock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from unittest import mock

import mlx.core as mx

from ...sets.mlx.device import is_proven
from ...sets.mlx.kv_arena import body
from ...sets.mlx.kv_arena.choice import COUNTS
from .. import Inputs
from ..comparing import live, require, require_same, some
from . import cases, equivalence, models
from .cases import Step
from .equivalence import FEW, after_failures, further_models
from .models import Model
from .rig import Player

PATCH = "mlx.kv-arena"

SCRIPTED = [cases.SCRIPTED, cases.GROWING, cases.EXTENDING, cases.CHANGING]


def batches(inputs: Inputs) -> int:
    """Batches that grow and change; arenas serve most of their steps."""
    with models.model("qwen3", "float32") as model:
        compared = _same(model, [*SCRIPTED, *inputs(cases.random_schedule)])
    most = not is_proven(mx) or COUNTS["steps"] >= 2 * COUNTS["stock steps"]
    require(most, f"{PATCH}: {dict(COUNTS)}")
    return compared


def settling(inputs: Inputs) -> int:
    """Batches that change at every step and settle; some rows are set apart."""
    with models.model("qwen3", "float32") as model:
        compared = _same(model, _settling(inputs))
    apart = not is_proven(mx) or COUNTS["partings"]
    require(apart, f"{PATCH}: no rows were set apart, {dict(COUNTS)}")
    return compared


def prefix_hits(inputs: Inputs) -> int:
    """Prompts whose prefix is in the pool, with random episodes."""
    hits = [*_hits(inputs), cases.FAR, *inputs(cases.random_episodes)]
    with models.model("qwen3", "float32") as model:
        return _same(model, hits, radix=True)


def bfloat16(inputs: Inputs) -> int:
    """The same schedules in the dtype of most models."""
    drawn = inputs(cases.random_schedule)[:FEW]
    schedules = [*some(inputs, SCRIPTED), *drawn, *some(inputs, _settling(inputs)[:FEW])]
    with models.model("qwen3", "bfloat16") as model:
        return _same(model, schedules)


def other_layers(inputs: Inputs) -> int:
    """Models with recurrent states and with sliding windows."""
    drawn = inputs(cases.random_schedule)[:FEW]
    compared = 0
    for name in some(inputs, further_models()):
        with models.model(name, "float32") as model:
            compared += _same(model, [*SCRIPTED[:2], *drawn, *_settling(inputs)[:FEW]])
    return compared


def sampled(inputs: Inputs) -> int:
    """Sampled tokens, where the release samples."""
    with models.model("qwen3", "float32") as model:
        return _same(model, some(inputs, SCRIPTED), sampling=True)


def pool_of_another_dtype(inputs: Inputs) -> int:
    """Requests that start from its KV have that dtype too, and so do those with their buffers."""
    with models.model("qwen3", "bfloat16", quantized=True) as model:
        return _same(model, _hits(inputs)[: 1 + FEW], radix=True)


def ends_of_buffers(inputs: Inputs) -> int:
    """Buffers that end at once, patched, against wide ones in stock: its own attribute sets it."""
    schedules = [cases.SCRIPTED, cases.SETTLING, *inputs(cases.random_schedule)]
    with models.model("qwen3", "float32") as model:
        wide = [_with_buffers(model, 1024, schedule) for schedule in schedules]
        with live(PATCH):
            grown = [_with_buffers(model, 8, schedule) for schedule in schedules]
    require_same(f"{PATCH}, where buffers end", wide, grown)
    return len(schedules)


def unproven_device(inputs: Inputs) -> int:
    """On a device treated as unproven: the results are equal, and then arenas serve."""
    drawn = inputs(cases.random_schedule)[:FEW]
    schedules = [cases.SCRIPTED, cases.GROWING, *drawn, *_hits(inputs)[:FEW]]
    COUNTS.clear()
    with (
        models.model("qwen3", "float32") as model,
        mock.patch.object(body, "is_proven", return_value=False),
    ):
        compared = equivalence.same(PATCH, model, schedules, radix=True)
    tried = COUNTS["tried steps"] and COUNTS["steps"]
    require(tried, f"{PATCH}: on an unproven device {dict(COUNTS)}")
    return compared


def _same(model: Model, schedules: Sequence[Sequence[Step]], **kwargs: bool) -> int:
    served = ("steps", "stock steps")
    return equivalence.same(PATCH, model, schedules, counts=COUNTS, served=served, **kwargs)


def _settling(inputs: Inputs) -> list[tuple[Step, ...]]:
    return [cases.SETTLING, *inputs(cases.random_changes)]


def _hits(inputs: Inputs) -> list[tuple[Step, ...]]:
    return [cases.HITTING, *inputs(cases.random_hits)]


def _with_buffers(model: Model, tokens: int, schedule: Sequence[Step]) -> dict[str, Any]:
    player = Player(model)
    player.runner._max_seq_len = tokens
    return asdict(player.play(schedule))


CHECKS = {
    "batches": batches,
    "settling": settling,
    "prefix hits": prefix_hits,
    "failing steps": lambda _: after_failures(PATCH, "float32"),
    "bfloat16": bfloat16,
    "other layers": other_layers,
    "sampled": sampled,
    "a pool of another dtype": pool_of_another_dtype,
    "ends of buffers": ends_of_buffers,
    "an unproven device": unproven_device,
}
