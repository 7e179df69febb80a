"""One rank of a small Nemotron-H: ``python mamba2_rank.py RANK RANKS PORT SELECTION SERVER``.

Plays prefills with `qwen_jobs`' prompts, on the release on PYTHONPATH, without graphs. The ranks
meet at the port, with gloo; SERVER is JSON, further arguments.
"""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "0|1"  # stock wants a NUMA node for each rank

import qwen_jobs

import sglang_perf_patches
from sglang_perf_patches.sets.mamba import mamba2_chunk_indices as body
from sglang_perf_patches.sets.mamba.mamba2_chunk_indices import PATCH
from tests.proof.swa import window_models
from tests.proof.swa.window_server import WindowServer, prepare, tell

NAME = "nemotron-h"
_MODELS = json.loads(Path(__file__).with_name("models.json").read_text("utf-8"))
window_models.MODELS[NAME] = _MODELS["served"][NAME]


def main(rank: int, ranks: int, port: int, selection: str, arguments: str) -> None:
    prepare()
    _lend()
    sglang_perf_patches.activate(selection)
    server = WindowServer(
        NAME,
        rank=rank,
        port=port,
        tp_size=ranks,
        attention_backend="triton",
        max_mamba_cache_size=64,
        **json.loads(arguments),
    )
    for name, value in server.runner.model.named_parameters():
        if name.endswith(".A"):  # states grow without bound if it is positive
            value.data.neg_()
    with mock.patch.object(body, "logical", side_effect=body.logical) as logical:
        computed = qwen_jobs.computed(server)
    tell(PATCH.id, computed=computed, chunks=logical.call_count)


def _lend() -> None:
    """The release's Triton convolution, which it imports for GPUs only."""
    layer: Any = importlib.import_module("sglang.srt.layers.attention.mamba.mamba")
    kernels: Any = importlib.import_module("sglang.kernels.ops.mamba.causal_conv1d_triton")
    for name in ("causal_conv1d_fn", "causal_conv1d_update"):
        for alias in (name, f"{name}_triton"):
            setattr(layer, alias, getattr(kernels, name))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:])  # type: ignore[call-arg]
