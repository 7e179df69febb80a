"""Prompts and decodes equal stock's, single and batched, also past the end of a buffer."""

from __future__ import annotations

from .. import Inputs
from . import cases, models
from .equivalence import episodes, same

PATCH = "mlx.first-buffer"


def ends_of_buffers(_: Inputs) -> int:
    """Prompts and steps that cross them, with the radix cache and without."""
    crossing = [cases.CROSSING, cases.SCRIPTED]
    with models.model("qwen3", "float32") as model:
        return same(PATCH, model, crossing) + same(PATCH, model, crossing, radix=True)


CHECKS = {
    "episodes": lambda inputs: episodes(PATCH, inputs),
    "ends of buffers": ends_of_buffers,
}
