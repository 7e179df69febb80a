"""Prefix hits, prompt chunks, aborts and cleared caches equal stock's, and buffers are freed."""

from __future__ import annotations

import gc

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
    with models.model("qwen3", "float32") as model:
        stocks, stocks_pool = _kept_after_six(model)
        with live(PATCH):
            kept, pool = _kept_after_six(model)
    require(kept * 6 <= stocks, f"{PATCH}: {kept} bytes are kept of 6 requests, stock's {stocks}")
    # 6 requests take some 160 of 4096 slots.
    require(pool * 8 <= stocks_pool, f"{PATCH}: the pool has {pool} bytes, stock's {stocks_pool}")
    return 1


def _kept_after_six(model: Model) -> tuple[int, int]:
    """Bytes still in use after six requests, each with its own prompt; and the pool's."""
    player = Player(model, radix=True)
    player.bytes_of_pool()
    gc.collect()
    before: int = mx.get_active_memory()
    for number in range(6):
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
