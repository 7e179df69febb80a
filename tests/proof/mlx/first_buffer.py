"""How many tokens a buffer holds."""

from __future__ import annotations

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import live, require
from sglang_perf_patches.verify.mlx import models
from sglang_perf_patches.verify.mlx.first_buffer import PATCH
from sglang_perf_patches.verify.mlx.rig import Player


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


CHECKS = {"room": room}
