"""A reply that runs past its slots, and whose row is taken again, changes no other prefix.

The worker, the runner and the pool are the release's. Stock writes over the prefix in both ways.
"""

from __future__ import annotations

import importlib
from random import Random
from types import SimpleNamespace
from typing import Any

import mlx.core as mx

from sglang_perf_patches.sets.mlx.references import MLX
from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import require
from sglang_perf_patches.verify.mlx import models
from sglang_perf_patches.verify.mlx.rig import Player, digest
from tests.proof.mlx.hybrid_cache import on_mlx

PATCH = "mlx.released-rows"
BESIDE = ((), ("mlx.pool-write",), ("mlx.pool-write", "mlx.kv-arena", "mlx.hybrid-cache"))
"""What may be on too: it writes to the pool later, keeps KV elsewhere, or releases rows itself."""


def stock(_: Inputs) -> int:
    """Stock writes over the prefix when a request has no slots, and when it has lost its row."""
    with models.model("qwen3", "float32") as model:
        for lost in (0, 6):
            require(not _Replies(model, 12, 9, lost, reused=not lost).kept(), "stock keeps it")
    return 2


def released(inputs: Inputs) -> int:
    """Prompts and replies of several lengths, with all or some of their slots."""
    importlib.import_module("sglang.srt.model_executor.model_runner")  # mlx.hybrid-cache's
    drawn = inputs(_draw, 4)
    compared = 0
    with models.model("qwen3", "float32") as model:
        for lengths in ((12, 9, 0), (12, 9, 6), (1, 2, 1), *drawn):
            for beside in BESIDE:
                with on_mlx(PATCH, beside=beside):
                    replies = _Replies(model, *lengths, reused=True)
                    require(replies.kept(), f"{lengths}, beside {beside}: a prefix has changed")
                    require(replies.written(), f"{lengths}, beside {beside}: the reply is lost")
                    compared += 2
    return compared


def _draw(chance: Random) -> tuple[int, int, int]:
    tokens = chance.randint(1, 70)
    return chance.randint(1, 70), tokens, chance.randint(0, tokens)


class _Replies:
    """A prefix in the pool, and then a reply that is released.

    The last `lost` of its tokens own no slot: their part of the row has the prefix's slots. If
    `reused`, another prompt with the prefix takes the row before the request is removed.
    """

    def __init__(
        self, model: models.Model, prompt: int, tokens: int, lost: int, *, reused: bool
    ) -> None:
        player = Player(model, radix=True)
        self._pool = player._stock_pool()
        runner, rows = player.runner, player._pool
        assert rows is not None
        player.join("prefix", 150)
        self._prefix = rows.slots("prefix", 0, 150)
        player.leave("prefix")
        self._before = self._read(self._prefix)
        player.join("reply", prompt)
        player.join("beside", 5)
        player.decode(["reply", "beside"], tokens, chained=True)
        row = rows.req_to_token.rows[rows._rows["reply"]]
        owned = prompt + tokens - lost
        row[owned:] = self._prefix[:lost]
        cache = runner._req_caches["reply"]
        layout = runner._cache_layout
        layers = getattr(layout, "full_attention_layer_indices", None)
        attention = [cache[each] for each in layers or layout.attention_layer_indices]  # 0.5.17
        self._reply = digest(mx.stack([each.keys[0, :, :owned] for each in attention]))
        self._slots = row[:owned]
        if lost:
            runner.flush_all_decode_kv()  # another prompt arrives before the reply ends
        importlib.import_module(f"{MLX}.tp_worker").MlxTpModelWorker.prepare_for_kv_cache_release(
            SimpleNamespace(_mlx_runner=runner), _request("reply", owned)
        )
        if reused:
            row[:] = (self._prefix * 2)[: len(row)]
        runner.flush_all_decode_kv()
        runner.remove_request("reply")

    def kept(self) -> bool:
        return self._read(self._prefix) == self._before

    def written(self) -> bool:
        """Whether the slots that the reply owned have its KV."""
        keys, _ = self._pool.get_kv_all_layers(mx.array(self._slots, dtype=mx.int32))
        return digest(mx.stack([each.transpose(1, 0, 2) for each in keys])) == self._reply

    def _read(self, slots: list[int]) -> list[str]:
        parts = self._pool.get_kv_all_layers(mx.array(slots, dtype=mx.int32))
        return [digest(mx.stack(list(each))) for each in parts]


def _request(rid: str, owned: int) -> Any:
    lengths = dict.fromkeys(("effective_kv_committed_len", "owned_kv_len"), lambda: owned)
    return SimpleNamespace(rid=rid, kv=SimpleNamespace(), **lengths)


CHECKS = {"stock writes over it": stock, "released": released}
