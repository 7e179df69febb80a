"""One rank of a tensor-parallel server: ``python qwen_rank.py RANK RANKS PORT SELECTION SERVER``.

Plays what `qwen_jobs` plays, on the release on PYTHONPATH, from prefill graphs. The ranks meet at
the port, with gloo. SERVER is JSON, its arguments. Prints as JSON what the rank computed, how
often tables were filled, and what the server has on.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from typing import Any
from unittest import mock

os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "0|1"  # stock wants a NUMA node for each rank

import qwen_jobs
import qwen_server
import torch

import sglang_perf_patches
from sglang_perf_patches.live import published
from sglang_perf_patches.model.setups import FEATURES
from sglang_perf_patches.sets.mamba.gdn_prefill_graph import prefill_tables


def main(rank: int, ranks: int, port: int, selection: str, arguments: str) -> None:
    """Boot, play and print."""
    qwen_server.lend()
    sglang_perf_patches.activate(selection)
    heads = dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), ranks)
    asked = {"rank": rank, "port": port, "tp_size": ranks, **json.loads(arguments)}
    asked["model_text_config"] = {**qwen_server.TEXT, **heads}
    filled = mock.patch.object(
        prefill_tables.Tables, "fill", autospec=True, side_effect=prefill_tables.Tables.fill
    )
    with filled as fills, qwen_server.served(qwen_jobs.BUCKETS, **asked) as server:
        played = qwen_jobs.play(server)
        assert all(row.isfinite().all() for rows in played["logits"].values() for row in rows)
        graph = sglang_perf_patches.report().of(qwen_jobs.GRAPH)
        computed = {
            "batches": played["batches"],
            "tokens": played["tokens"],
            "logits": {rid: [*map(_sum, rows)] for rid, rows in played["logits"].items()},
            "states": [*map(_sum, played["states"])],
        }
    told = {
        "computed": computed,
        "on tables": fills.call_count,
        "patch": [graph.state, graph.reason],
        "on": sorted(FEATURES.of(published.published())),
    }
    print(json.dumps(told), flush=True)


def _sum(held: Any) -> int:
    return zlib.crc32(held.contiguous().view(torch.uint8).numpy().tobytes())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:])  # type: ignore[call-arg]
