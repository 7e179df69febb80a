"""How many tokens fit: the release's own arithmetic, for real models' configurations, on a CPU.

    python tests/benchmarks/swa/window_fit.py

Prints a Markdown table. For each model and budget it makes the release's ``ModelConfig`` and its
configurator of KV pools, with the server's arguments published, as stock, with swa.window-pool, and
with swa.pool-ratio besides. No weights are loaded. The release, ``src`` and this
checkout are on PYTHONPATH.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rig"))
os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")

from tests.proof import stubs  # noqa: E402

stubs.lend()
logging.disable(logging.ERROR)

import shapes  # noqa: E402
import torch  # noqa: E402

import sglang_perf_patches  # noqa: E402

CASES = (
    ("gemma", "Gemma-3-12B", 40, 20, 8192),
    ("gemma-27b", "Gemma-3-27B", 12, 4, 2048),
    ("gemma-27b", "Gemma-3-27B", 70, 16, 8192),
)
"""Shape, its name, GiB for KV, --max-running-requests and --chunked-prefill-size."""
SIDES = ("none", "swa.window-pool", "swa.window-pool,swa.pool-ratio")


def tokens(shape: str, gib: int, running: int, chunk: int, selection: str) -> tuple[int, int]:
    """Of the full pool and of the window pool, 0 where there is none."""
    server = importlib.import_module("sglang.srt.server_args")
    context = importlib.import_module("sglang.srt.runtime_context")
    config = importlib.import_module("sglang.srt.configs.model_config")
    setup = importlib.import_module("sglang.srt.model_executor.model_runner_components.layer_setup")
    pools = importlib.import_module("sglang.srt.model_executor.pool_configurator")
    spec = importlib.import_module("sglang.srt.speculative.spec_info")
    chosen, _ = shapes.write(shape, Path(tempfile.mkdtemp()), {})
    sglang_perf_patches.activate(selection)
    try:
        arguments = server.ServerArgs(
            **chosen,
            load_format="dummy",
            skip_tokenizer_init=True,
            device="cpu",
            attention_backend="triton",
            max_running_requests=running,
            chunked_prefill_size=chunk,
        )
        ranks = context.SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0)
        context.publish(arguments, role="scheduler", ranks=ranks)
        model = config.ModelConfig.from_server_args(arguments)
        layers = setup.resolve_layer_indices(
            model=SimpleNamespace(), model_config=model, is_draft_worker=False
        )
        kvc: Any = SimpleNamespace(
            server_args=arguments,
            model_config=model,
            layer_info=layers,
            kv_cache_dtype=torch.bfloat16,
            kv_cache_dtype_str="auto",
            sliding_window_size=model.sliding_window_size - 1,
            page_size=1,
            is_hybrid_swa=model.is_hybrid_swa,
            is_hybrid_swa_compress=model.is_hybrid_swa_compress,
            use_mla_backend=False,
            is_draft_worker=False,
            spec_algorithm=spec.SpeculativeAlgorithm.NONE,
            spec_aux_config=SimpleNamespace(eagle_draft_num_layers=None),
            attn_dp_size=1,
            pp_size=1,
            ps=SimpleNamespace(attn_dp_size=1, attn_tp_size=1),
            mambaish_config=None,
            dflash_draft_cell_size_per_token=None,
            fused_entry_bytes=lambda _: None,
        )
        sizes = pools.create_memory_pool_configurator(kvc).calculate_pool_sizes(gib << 30, 1)
        return int(sizes.max_total_num_tokens), int(sizes.swa_max_total_num_tokens or 0)
    finally:
        sglang_perf_patches.deactivate()


def main() -> None:
    """Print the table."""
    importlib.import_module("sglang.srt.managers.scheduler")
    print(
        "| model | GiB for KV | `--max-running-requests` | chunks | stock | patched | with ratio |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for shape, name, gib, running, chunk in CASES:
        told = [tokens(shape, gib, running, chunk, side) for side in SIDES]
        cells = [f"{full:,}" + (f" + {swa:,}" if swa else "") for full, swa in told]
        print(f"| {name} | {gib} | {running} | {chunk} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
