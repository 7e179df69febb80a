"""A rank of two that run proofs: ``python play_ranks.py RANK RANKS PORT FEATURES PATCH …``.

As `play_setups`, in the release's own groups of a tensor-parallel server, whose ranks meet over
gloo at the port. All play the same. Prints one JSON line, with the ``lines`` of the patches.
"""

import importlib
import json
import os
import sys
from typing import Any

os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "0|1"  # stock wants a NUMA node for each rank

import play_setups
from torch import distributed

from sglang_perf_patches.verify import stock
from sglang_perf_patches.verify.mamba import rig

_STATE = "sglang.srt.distributed.parallel_state"


def main(rank: int, ranks: int, port: int, names: str, *patches: str) -> None:
    """Meet, play and print."""
    state: Any = importlib.import_module(_STATE)
    stock.called(
        state.init_distributed_environment,
        world_size=ranks,
        rank=rank,
        local_rank=rank,
        distributed_init_method=f"tcp://127.0.0.1:{port}",
        backend="gloo",
    )
    publish = play_setups._publish

    def publish_here(*given: Any) -> str:
        refused = publish(*given)
        _group(rank, ranks, names.split(","))
        return refused

    play_setups._publish = publish_here  # type: ignore[assignment]
    rig.alone = lambda: None  # type: ignore[assignment, attr-defined]
    _share_heads(ranks)
    lines = [*play_setups.played(names, patches)]
    distributed.barrier()  # the first rank's process has what the others meet by
    told = {"rank": distributed.get_rank(), "ranks": state.get_tp_group().world_size}
    print(json.dumps({**told, "lines": lines}), flush=True)


def _group(rank: int, ranks: int, names: list[str]) -> None:
    state: Any = importlib.import_module(_STATE)
    if state.model_parallel_is_initialized():
        return
    has_own_requests = "dp-attention" in names
    attention = 1 if has_own_requests else ranks
    experts = ranks if "expert-parallel" in names else 1
    widths = {
        "tp_size": ranks,
        "attn_tp_size": attention,
        "attn_dp_size": ranks // attention,
        "attn_cp_size": 1,
        "moe_ep_size": experts,
        "moe_dp_size": 1,
        "moe_tp_size": ranks // experts,
    }
    place = {"tp_rank": rank, "attn_tp_rank": rank % attention, "attn_dp_rank": rank // attention}
    stock.state_ranks(**widths, **place)
    stock.called(
        state.initialize_model_parallel,
        tensor_model_parallel_size=ranks,
        expert_model_parallel_size=experts,
    )


def _share_heads(ranks: int) -> None:
    """Have the heads of a rig be this rank's part of a model's."""
    of_rig, of_pool = rig.Lightning._model_config, rig.Mamba2._widths

    def of_model(self: rig.Lightning) -> Any:
        model = of_rig(self)
        model.hf_config.num_attention_heads *= ranks
        return model

    def of_layers(self: rig.Mamba2) -> dict[str, Any]:
        widths = of_pool(self)
        shared = ("num_heads", "intermediate_size", "conv_dim")
        return widths | {name: widths[name] * ranks for name in shared}

    rig.Lightning._model_config = of_model  # type: ignore[method-assign]
    rig.Mamba2._widths = of_layers  # type: ignore[method-assign]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:])  # type: ignore[call-arg]
