"""One rank of a tensor-parallel server: ``python prefill_rank.py RANK RANKS PORT SELECTION``.

Serves prompts of a small Gemma 3 from prefill graphs, on the release on PYTHONPATH. The ranks meet
at the port, with gloo. Graphs are tapes, and FlashAttention 3's kernel has the proof's stand-in.
"""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

import importlib
import json
import logging
import os
import sys
from random import Random
from typing import Any
from unittest import mock

from tests.proof import stubs

os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "0|1"  # stock wants a NUMA node for each rank

stubs.lend()
for name in ("sglang", "sglang_perf_patches"):
    logging.getLogger(name).setLevel(logging.CRITICAL)

import sglang_perf_patches
from sglang_perf_patches.live import engine, published
from sglang_perf_patches.model.setups import FEATURES
from sglang_perf_patches.sets.swa.prefill_graph.body import Either
from sglang_perf_patches.verify.swa.prefill_graph import PATCH
from tests.proof.mamba import fake_cuda_graph
from tests.proof.swa import prefill_graph as proof
from tests.proof.swa.window_server import FLASH, WindowServer, checksum, prepare

BUCKETS = (8, 32, 64)
_DRAW = Random(7)
_BASE = [_DRAW.randrange(3, 120) for _ in range(160)]
ROUNDS = (
    (_BASE[:61],),
    (_BASE[:90], _BASE[90:97]),  # a prefix from the cache; several requests in one prefill
    (_BASE[40:49],),
    (_BASE[:150],),  # chunks
)


def main(rank: int, ranks: int, port: int, selection: str) -> None:
    prepare()
    flash: Any = importlib.import_module(FLASH)
    # As in a server, whose runners are imported before its attention backend is made.
    importlib.import_module("sglang.srt.model_executor.runner.prefill_cuda_graph_runner")
    sglang_perf_patches.activate(selection)
    replayed: list[bool] = []
    replay = Either.replay

    def counted(self: Either) -> None:
        replayed.append(self.is_ours)
        replay(self)

    with (
        fake_cuda_graph.read_as_breakable(),
        proof.on_hopper(),
        mock.patch.object(Either, "replay", counted),
        fake_cuda_graph.on_cpu(),
        fake_cuda_graph.Unpinned(),
    ):
        server = WindowServer(
            rank=rank, port=port, tp_size=ranks, dtype="bfloat16", model_torch_dtype="bfloat16"
        )
        flash.flash_attn_with_kvcache = proof.attention
        fake_cuda_graph.capture_prefills(server.runner, BUCKETS)
        for prompts in ROUNDS:
            for prompt in prompts:
                server.submit(prompt, 3)
            server.serve()
        server.check_drained()
    engine.look_again()  # a gate is noted at the next check
    report = sglang_perf_patches.report()
    patch = report.of(PATCH) if report else None
    told = {
        "patch": [patch.state, patch.reason] if patch else ["off", ""],
        "on": sorted(FEATURES.of(published.published())),
        "ours": sum(replayed),
        "batches": server.batches,
        "tokens": {rid: server.tokens(rid) for rid in server.reqs},
        "logits": {rid: [*map(checksum, rows)] for rid, rows in server.logits.items()},
        "finite": all(row.isfinite().all() for rows in server.logits.values() for row in rows),
    }
    sglang_perf_patches.deactivate()  # while the server may still replay
    report = sglang_perf_patches.report()
    told["left"] = report.of(PATCH).state if report else "off"
    print(json.dumps(told, default=bool), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), sys.argv[4])  # type: ignore[call-arg]
