"""Groups without a pool, of rounded shapes and with other samplers; and what is left to stock."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any
from unittest import mock

from sglang_perf_patches.sets.mlx.batched_prefill import body
from sglang_perf_patches.sets.mlx.batched_prefill.body import COUNTS
from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import require
from sglang_perf_patches.verify.mlx import models
from sglang_perf_patches.verify.mlx.batched_prefill import (
    PART,
    PATCH,
    SCRIPTED,
    Batches,
    play,
    random_batches,
    same_prompts,
)
from sglang_perf_patches.verify.mlx.equivalence import FEW, can_sample, near

without_prefixes = partial(random_batches, hits=False)


def without_pool(inputs: Inputs) -> int:
    """The same without the radix cache."""
    batches = [SCRIPTED[:2], *inputs(without_prefixes)[:FEW]]
    return same_prompts("float32", batches, radix=False)


def rounded_shapes(inputs: Inputs) -> int:
    """Where cuDNN attends, groups have fewer shapes: more rows, longer ones, shorter prefixes."""
    with mock.patch.object(body, "attends_by_cudnn", return_value=True):
        return same_prompts("float32", [SCRIPTED, *inputs(random_batches)])


def recurrent_without_pool(inputs: Inputs) -> int:
    """A hybrid model without the radix cache, and in rounded shapes."""
    batches = [SCRIPTED[:2], *inputs(without_prefixes)[:FEW]]
    compared = same_prompts("float32", batches, name="qwen3_next", radix=False)
    with mock.patch.object(body, "attends_by_cudnn", return_value=True):
        return compared + same_prompts("float32", [SCRIPTED], name="qwen3_next")


def left_to_stock(_: Inputs) -> int:
    """A hybrid model whose states can't be told lengths, or that can't take rows at all."""
    with models.model("qwen3_next", "float32") as model:
        for module, name, change in (
            (body, "is_recurrent", {"return_value": False}),
            (body, "compute", {"side_effect": ValueError("offsets")}),
        ):
            COUNTS.clear()
            with mock.patch.object(module, name, **change):
                near(PATCH, model, lambda: [play(model, SCRIPTED[:2])], PART, ran=False)
            require(not COUNTS["together"], f"{PATCH}: {dict(COUNTS)}")
    return 2


def faulty_caches(_: Inputs) -> int:
    """The trial of a hybrid model's group finds states that take in padding."""
    batches: Batches = (
        [("a", 32, "", 0), ("b", 32, "", 0)],
        [("c", 20, "", 0)],
        [("d", 40, "", 0)],
        [("e", 10, "", 0), ("f", 9, "", 0)],
        [("g", 20, "c", 16), ("h", 20, "c", 16)],
        [("i", 30, "c", 16), ("j", 30, "d", 32)],
    )
    caches: Any = import_module("mlx_lm.models.cache")
    without_lengths = mock.patch.object(caches.ArraysCache, "prepare")
    compared = 0
    with models.model("qwen3_next", "float32") as model, without_lengths:
        for rounds in (False, True):
            with mock.patch.object(body, "attends_by_cudnn", return_value=rounds):
                near(PATCH, model, lambda: [play(model, batches)], PART, ran=None)
            compared += 1
    return compared


def sampled(_: Inputs) -> int:
    return same_prompts("float32", [SCRIPTED], sampling=True) if can_sample() else 0


def other_values(_: Inputs) -> int:
    """Where a trial finds other values, the patch leaves the prompts to stock."""
    with models.model("qwen3", "float32") as model, mock.patch.object(body, "_NEAR", -1.0):
        near(PATCH, model, lambda: [play(model, SCRIPTED)], PART, ran=False)
    return 1


CHECKS = {
    "without a pool": without_pool,
    "rounded shapes": rounded_shapes,
    "recurrent states without a pool": recurrent_without_pool,
    "recurrent states, left to stock": left_to_stock,
    "recurrent states, faulty caches": faulty_caches,
    "sampled": sampled,
    "other values": other_values,
}
