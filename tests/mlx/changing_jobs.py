"""Batches that change, with `mlx.kv-arena`."""

import gc
from typing import Any
from unittest import mock

import mlx.core as mx
from job_tools import played

import sglang_perf_patches
from sglang_perf_patches.sets.mlx.kv_arena import body as kv_arena
from sglang_perf_patches.sets.mlx.kv_arena import moves as arena_moves
from sglang_perf_patches.verify.mlx import cases, models, rig


def changing() -> dict[str, Any]:
    """By a batch's requests, its counts: it changes at every step, settles, and changes once."""
    results = {}
    with models.model("qwen3", "float32") as model:
        sglang_perf_patches.activate("mlx.kv-arena", strict=True)
        for requests in (2, 4):
            player = rig.Player(model)
            names = [f"r{number}" for number in range(requests + 7)]
            for name in names:
                player.join(name, 9)
            player.decode(names[:requests], 3)
            of_batch = results[str(requests)] = {}
            for what, firsts, steps in (
                ("changing", range(1, 7), 1),
                ("settled", (6,), 4),
                ("changed once", (7,), 3),
            ):
                kv_arena.COUNTS.clear()
                for first in firsts:
                    for name in names[:first]:
                        if name in player._held:
                            player.leave(name)
                    player.decode(names[first : first + requests], steps)
                of_batch[what] = dict(kv_arena.COUNTS)
        sglang_perf_patches.deactivate()
    return results


def memory_while_changing() -> dict[str, Any]:
    """Bytes that a step takes in a batch which changes at every step, and those of its buffers."""
    results: dict[str, Any] = {}
    with models.model("qwen3", "float32") as model:
        for what, selection in (("stock", "none"), ("patched", "mlx.kv-arena")):
            sglang_perf_patches.activate(selection, strict=True)
            results[what] = _memory_of_a_changing_step(model)
            sglang_perf_patches.deactivate()
    return results


def _memory_of_a_changing_step(made: Any) -> dict[str, int]:
    gc.collect()
    before = mx.get_active_memory()
    player = rig.Player(made)
    names = list("abcdef")
    for name in names:
        player.join(name, 400)
    player.decode(names, 3)
    for first in range(1, 4):
        player.decode([*names[first:], *names[:first]])
    player.pending.clear()
    gc.collect()
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    player.decode(names)
    player.pending.clear()
    taken = mx.get_peak_memory() - held
    for name in names:
        player.leave(name)
    return {"held": held - before, "taken": taken}


def far_apart() -> dict[str, Any]:
    """Requests whose padded rows would take more than stock's buffers, which are made smaller."""
    schedule = cases.schedule("join a 200, join b 5, join c 6, chain abc 3, leave a, chain bc 3")
    results: dict[str, Any] = {}
    with models.model("qwen3", "float32") as model:
        for selection in ("none", "mlx.kv-arena"):
            with mock.patch.object(arena_moves, "STOCK_ROOM", 16):
                results[selection] = played(
                    selection, model, [schedule], kv_arena.COUNTS, "mlx.kv-arena"
                )
    return results
