"""Prefix hits, prompt chunks, aborts and cleared caches equal stock's, and buffers are freed."""

from __future__ import annotations

import gc
from contextlib import nullcontext

import mlx.core as mx

from .. import Inputs
from ..comparing import live, require
from . import models
from .equivalence import episodes
from .models import Model
from .rig import Player

PATCH = "mlx.pool-write"


def memory(_: Inputs) -> int:
    """In stock the pool pins two buffers per request, and has all of its slots."""
    kept, pool = {}, {}
    with models.model("qwen3", "float32") as model:
        for is_live in (False, True):
            with live(PATCH) if is_live else nullcontext():
                kept[is_live], pool[is_live] = _kept_after(model, 6)
    freed = kept[True] * 6 <= kept[False]
    require(freed, f"{PATCH}: {kept[True]} bytes are kept of 6 requests, stock's {kept[False]}")
    # 6 requests take some 160 of 4096 slots.
    small = pool[True] * 8 <= pool[False]
    require(small, f"{PATCH}: the pool has {pool[True]} bytes, stock's {pool[False]}")
    return 1


def _kept_after(model: Model, requests: int) -> tuple[int, int]:
    """Bytes still in use after a sequence of requests, each with its own prompt; and the pool's."""
    player = Player(model, radix=True)
    player.bytes_of_pool()
    gc.collect()
    before: int = mx.get_active_memory()
    for number in range(requests):
        player.join(f"r{number}", 20 + number)
        player.decode([f"r{number}"], 3)
        player.leave(f"r{number}")
        player.pending.clear()
    mx.synchronize()
    gc.collect()
    after: int = mx.get_active_memory()
    return after - before, player.bytes_of_pool()


CHECKS = {
    "episodes": lambda inputs: episodes(PATCH, inputs, needs_pool=True),
    "memory": memory,
}
