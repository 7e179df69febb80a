"""Prompts and decodes are stock's, also across the end of a buffer, alone and batched."""

from __future__ import annotations

from .. import Inputs
from ..comparing import live, require
from . import cases, models
from .equivalence import episodes, same
from .rig import Player

PATCH = "mlx.first-buffer"


def ends_of_buffers(_: Inputs) -> int:
    """Prompts and steps that cross them, with the radix cache and without."""
    crossing = [cases.CROSSING, cases.SCRIPTED]
    with models.model("qwen3", "float32") as model:
        return same(PATCH, model, crossing) + same(PATCH, model, crossing, radix=True)


def room(_: Inputs) -> int:
    """How many tokens the buffers hold: of a request, of one that was released, of the next."""
    with models.model("qwen3", "float32") as model, live(PATCH):
        player = Player(model)
        player.join("a", 9)
        cache = player.runner._req_caches["a"][0]
        player.join("b", 300)
        player.leave("b")
        released = player.runner._cache_pool[-1][0]
        rooms = [cache.max_seq_len, released.keys.shape[2]]
        player.join("c", 20)
        rooms.append(player.runner._req_caches["c"][0].keys.shape[2])
    require(rooms == [256, 256, 256], f"{PATCH}: room for {rooms} tokens")
    return 1


CHECKS = {
    "episodes": lambda inputs: episodes(PATCH, inputs),
    "ends of buffers": ends_of_buffers,
    "room": room,
}
