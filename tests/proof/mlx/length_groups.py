"""Groups sample what stock does, and a step that fails has no effect."""

from __future__ import annotations

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import some
from sglang_perf_patches.verify.mlx.cases import schedule
from sglang_perf_patches.verify.mlx.equivalence import can_sample
from sglang_perf_patches.verify.mlx.length_groups import CROSSING, PATCH, groups_at, same_groups

from .failures import after_failures

FAILING = schedule(
    """
    join a 90, join b 12, decode ab, decode ab, fail ab 1, decode ab, fail ab 2, leave a, join c
    70, decode bc, decode cb
    """
)
"""Steps of a stable batch that fail in the middle of the model."""


def sampled(inputs: Inputs) -> int:
    if not can_sample():
        return 0
    return same_groups("float32", some(inputs, [CROSSING]), sampling=True)


def failing(_: Inputs) -> int:
    """Steps that fail in the middle of the model have no effect."""
    with groups_at(32):
        return after_failures(PATCH, "float32", FAILING)


CHECKS = {"sampled": sampled, "failing steps": failing}
