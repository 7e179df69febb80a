"""Decode steps with equal and unequal lengths equal stock's, for each kind of layer."""

from __future__ import annotations

from .. import Inputs
from ..comparing import some
from . import cases, models
from .equivalence import further_models, same

PATCH = "mlx.decode-context"


def all_models(inputs: Inputs) -> int:
    """All schedules with the first model, four with each other one."""
    schedules = [cases.SCRIPTED, *inputs(cases.random_schedule)]
    kinds = [("qwen3", "float32"), ("qwen3", "bfloat16")]
    kinds += [(name, "float32") for name in further_models()]
    compared = 0
    for number, (name, dtype) in enumerate(some(inputs, kinds)):
        with models.model(name, dtype) as model:
            compared += same(PATCH, model, schedules[:4] if number else schedules)
    return compared


CHECKS = {"models": all_models}
