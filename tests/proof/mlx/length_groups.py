"""Groups sample what stock does, and a step that fails has no effect."""

from __future__ import annotations

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import some
from sglang_perf_patches.verify.mlx.equivalence import can_sample
from sglang_perf_patches.verify.mlx.length_groups import CROSSING, PATCH, groups_at, same_groups

from .kv_arena import after_failures


def sampled(inputs: Inputs) -> int:
    if not can_sample():
        return 0
    return same_groups("float32", some(inputs, [CROSSING]), sampling=True)


def failing(_: Inputs) -> int:
    with groups_at(32):
        return after_failures(PATCH, 90, 70)


CHECKS = {"sampled": sampled, "failing steps": failing}
