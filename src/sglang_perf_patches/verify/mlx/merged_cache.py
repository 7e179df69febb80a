"""Joins, leaves, reorders, growth, extension and failed steps are stock's; it keeps windows."""

from __future__ import annotations

from ...sets.mlx.merged_cache.body import COUNTS
from .. import Inputs
from ..comparing import require
from . import cases, models
from .alike import FEW, after_failures, read, same
from .cases import Step

PATCH = "mlx.merged-cache"

SCRIPTED = [
    read(schedule) for schedule in (cases.SCRIPTED, cases.GROWING, cases.EXTENDING, cases.SETTLING)
]


def batches(inputs: Inputs, dtype: str) -> int:
    """Batches that grow and change; some steps merge nothing."""
    schedules = [*SCRIPTED, *_drawn(inputs), *map(read, inputs(cases.random_changes))]
    with models.model("qwen3", dtype) as model:
        compared = same(PATCH, model, schedules, counts=COUNTS, served=("steps", "merges"))
    require(COUNTS["steps"], f"{PATCH}: every step merged")
    return compared


def window(inputs: Inputs) -> int:
    """A model with a sliding window: every step merges.

    Lengths stay within the window: mlx-lm before 0.31.2 can't merge longer caches.
    """
    schedules = [SCRIPTED[0], *_drawn(inputs)[:FEW]]
    with models.model("gpt_oss", "float32", sliding_window=1024) as model:
        return same(PATCH, model, schedules, ran=False, counts=COUNTS, served=("merges",))


def _drawn(inputs: Inputs) -> list[tuple[Step, ...]]:
    return [read(schedule) for schedule in inputs(cases.random_schedule)]


CHECKS = {
    "batches": lambda inputs: batches(inputs, "float32"),
    "batches in bfloat16": lambda inputs: batches(inputs, "bfloat16"),
    "failing steps": lambda _: after_failures(PATCH, "float32"),
    "failing steps in bfloat16": lambda _: after_failures(PATCH, "bfloat16"),
    "a window": window,
}
