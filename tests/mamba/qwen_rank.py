"""One rank of a tensor-parallel server: ``python qwen_rank.py RANK RANKS PORT SELECTION SERVER``.

Plays what `qwen_jobs` plays, on the release on PYTHONPATH, from prefill graphs. The ranks meet at
the port, with gloo. SERVER is JSON, its arguments. With DP attention each rank gets requests of its
own, `APART`.
"""

import importlib
import json
import os
import sys
from typing import Any
from unittest import mock

os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "0|1"  # stock wants a NUMA node for each rank

import qwen_jobs
import qwen_server
import torch
from torch import distributed

import sglang_perf_patches
from sglang_perf_patches.live import engine
from sglang_perf_patches.sets.mamba.gdn_prefill_graph import prefill_tables
from tests.proof.swa.window_server import WindowServer, tell

_BASE = qwen_jobs.BASE
APART = (
    ([(_BASE[:90], 3)], [(_BASE[60:96], 2), (_BASE[20:31], 1)]),
    ([(_BASE[30:80], 2)], [(_BASE[:6], 2)]),  # whose tile, by itself, is a smaller one
    ([(_BASE[:110], 2)], []),
    ([], [(_BASE[60:120], 1), (_BASE[20:60], 1)]),
    ([(_BASE[3:8], 2)], [(_BASE[5:12], 3)]),
)
"""Of each round the prompts of two ranks: see `qwen_jobs.ROUNDS`."""
APART_BUCKETS = (8, 40, 64)


def main(rank: int, ranks: int, port: int, selection: str, arguments: str) -> None:
    qwen_server.lend()
    # As in a server, whose runners are imported before its attention backend is made.
    importlib.import_module("sglang.srt.model_executor.runner.prefill_cuda_graph_runner")
    sglang_perf_patches.activate(selection)
    heads = dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), ranks)
    asked = {"rank": rank, "port": port, "tp_size": ranks, **json.loads(arguments)}
    asked["model_text_config"] = {**qwen_server.TEXT, **heads}
    buckets = qwen_jobs.BUCKETS
    if asked.get("enable_dp_attention"):
        buckets = APART_BUCKETS
        qwen_jobs.ROUNDS = tuple(each[rank] for each in APART)
        WindowServer.serve = _serve_together  # type: ignore[method-assign]
        groups: Any = importlib.import_module("sglang.srt.distributed.parallel_state")
        groups.GroupCoordinator.reduce_scatter_tensor = _reduce_scatter
    filled = mock.patch.object(
        prefill_tables.Tables, "fill", autospec=True, side_effect=prefill_tables.Tables.fill
    )
    with filled as fills, qwen_server.served(buckets, **asked) as server:
        computed = qwen_jobs.computed(server)
        engine.look_again()  # a gate is noted at the next check
        on_tables = [sum(call.args[1]) for call in fills.call_args_list]
        tell(qwen_jobs.GRAPH, computed=computed, on_tables=on_tables)


def _reduce_scatter(group: Any, part: torch.Tensor, whole: torch.Tensor) -> None:
    """Of what a tape can note: gloo's own copies its result while the host waits for it."""
    part.copy_(group.all_reduce(whole.clone()).chunk(group.world_size)[group.rank_in_group])


_serve = WindowServer.serve


def _serve_together(server: WindowServer) -> None:
    """Step until no rank has anything to do: each step all ranks wait for each other."""

    def one_is_busy(_: int) -> bool:
        busy = torch.tensor(int(not server.scheduler.is_fully_idle()))
        distributed.all_reduce(busy)
        return bool(busy)

    _serve(server, one_is_busy)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:])  # type: ignore[call-arg]
