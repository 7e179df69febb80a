"""What `on_release` plays in an environment with stock sglang of one release."""

# ruff: noqa: F401  (`on_release` finds the jobs of single patches here)

from __future__ import annotations

import gc
import os
from dataclasses import asdict
from importlib import import_module, metadata
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import leaving as plays
import mlx.core as mx
from arena_jobs import (
    arena_memory,
    arena_nodes,
    broken_arena,
    growing_pool,
    looks_at_slots,
    small_buffers,
)
from attributes import describe, held, patched_modules
from changing_jobs import changing, far_apart, memory_while_changing
from context_jobs import before_23470
from job_tools import RELEASE, played, state
from row_jobs import broken_groups, broken_prefill, broken_rows, few_rows, restless_stock
from trial_jobs import broken_trial, queued_faults, trials
from turn_jobs import give_windows, kept_turns, whose_turn

import sglang_perf_patches
from sglang_perf_patches.sets.mlx import device, last_row
from sglang_perf_patches.verify import Missing, comparing
from sglang_perf_patches.verify.mlx import cases, models, rig
from tests.proof import OF_RUNNER


def off() -> dict[str, Any]:
    if os.environ.get("LOAD_PLUGINS"):
        import_module("sglang.srt.plugins").load_plugins()
    modules = [import_module(name) for name in patched_modules()]
    results: dict[str, Any] = {
        "plugins": [e.dist.name for e in metadata.entry_points(group="sglang.srt.plugins")],
        "attributes": describe(modules),
    }
    sglang_perf_patches.deactivate()
    before = held(modules)
    report = sglang_perf_patches.activate(OF_RUNNER, strict=True)
    results["live"] = [patch.id for patch in report.patches if patch.state == "live"]
    results["changed"] = sorted(
        name for name, now in held(modules).items() if now != before.get(name)
    )
    sglang_perf_patches.deactivate()
    after = held(modules)
    # The kept objects are alive in `before`, so that equal ids mean the identical object.
    results["differs after"] = sorted(
        name for name in before.keys() | after.keys() if after.get(name) != before.get(name)
    )
    results["attributes after"] = describe(modules)
    return results


def on_cuda() -> dict[str, Any]:
    """The room of a request's buffers where MLX says that it runs on CUDA."""

    def verified(*patches: str, beside: tuple[str, ...] = ()) -> str:
        try:
            with comparing.live(*patches, beside=beside, ran=None):
                return "went live"
        except Missing as error:
            return str(error)

    results: dict[str, Any] = {}
    cuda = SimpleNamespace(is_available=lambda: True)
    with models.model("qwen3", "float32") as model, mock.patch.object(mx, "cuda", cuda):
        for cudnn in ("1", "0"):
            os.environ[device.CUDNN_ATTENTION] = cudnn
            sglang_perf_patches.activate("mlx.first-buffer,mlx.kv-arena")
            player = rig.Player(model)
            player.join("a", 300)
            results[cudnn] = {
                "room": player.runner._req_caches["a"][0].keys.shape[2],
                "state": asdict(state("mlx.first-buffer")),
                "arena": state("mlx.kv-arena").state,
            }
            del player  # its requests hold buffers of the patches
            gc.collect()
            sglang_perf_patches.deactivate()
        os.environ.pop(device.CUDNN_ATTENTION)
        results["alone"] = verified("mlx.first-buffer")
        results["beside"] = verified("mlx.kv-arena", beside=("mlx.first-buffer",))
    return results


def other_blas() -> dict[str, Any]:
    """A CPU whose products of one row have other bits, as with OpenBLAS, in each dtype.

    Only the products of its probe and of the head: the model does not call them by its name.
    """

    class Head:
        """Like `product`, for a module that multiplies by itself."""

        def __init__(self, head: Any) -> None:
            self._head = head

        def __call__(self, hidden: Any) -> Any:
            logits = self._head(hidden)
            return logits if hidden.shape[1] > 1 else logits * logits.dtype.size

    stock_product = mx.matmul

    def product(left: Any, right: Any) -> Any:
        result = stock_product(left, right)
        return result if left.shape[-2] > 1 else result + result

    schedule = [("join", "a", 300), ("join", "b", 310), ("decode", "ab")]
    results: dict[str, Any] = {"here": last_row.gives_rows_alone(mx)}
    for dtype in ("float32", "bfloat16"):
        with models.model("qwen3", dtype) as model, mock.patch.object(mx, "matmul", product):
            results["there"] = last_row.gives_rows_alone(mx)
            head = model.model.lm_head
            dict.__setitem__(model.model, "lm_head", Head(head))
            for selection in ("none", "mlx.last-row"):
                results[f"{dtype} {selection}"] = played(
                    selection, model, [schedule], last_row.COUNTS, "mlx.last-row", radix=True
                )
            dict.__setitem__(model.model, "lm_head", head)
    return results


def together() -> dict[str, Any]:

    results: dict[str, Any] = {}
    for name, dtype in kinds(RELEASE):
        with models.model(name, dtype) as model:
            schedules = [cases.random_episodes(Random(seed)) for seed in range(4)]
            schedules += [cases.HITTING]
            of_model = results[f"{name} {dtype}"] = {}
            for selection in ("none", "mlx"):
                report = sglang_perf_patches.activate(selection, strict=True)
                player = rig.Player(model, radix=True)
                of_model[selection] = [asdict(player.play(each)) for each in schedules]
                of_model["ran"] = [patch.id for patch in report.patches if patch.state == "live"]
                sglang_perf_patches.deactivate()
    return results


def leaving() -> dict[str, Any]:
    """What patches do that are to be removed while they hold something."""
    return {"running": plays.running_requests(), "postponed": plays.postponed_write()}


def kinds(release: str) -> list[tuple[str, str]]:
    """The models whose layers that release can batch; a mixture of experts in float32 only.

    On a CPU, MLX multiplies by gathered matrices in float32 alone.
    """
    chosen = [("qwen3", "float32"), ("qwen3", "bfloat16")]
    if release != "0.5.11":
        chosen.append(("qwen3_next", "float32"))
    if release == "0.5.23":
        chosen.append(("gpt_oss", "float32"))
    return chosen
