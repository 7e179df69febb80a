"""Time to the first token of a real Engine of a hybrid model, with the patches the process has.

usage: python tests/benchmarks/mamba/ttft.py OUT.json

Boots the sglang on PYTHONPATH once, with dummy weights (the same in each boot) for 24 layers, 18 of
them gated delta nets. Run it plain for stock, and under ``python -m sglang_perf_patches run`` for
the patches. Boots of both kinds in turn show the spread between boots.

A release gets those of the arguments below that it knows, and those of a JSON object in the
variable ``ARGUMENTS``. So ``{"disable_prefill_cuda_graph": true}`` asks a recent release for eager
prefills, as old ones have.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK", "1")
os.environ.setdefault("SGLANG_DISABLE_CUDNN_CHECK", "1")

SIZES = {
    "1x600": (1, 600, 41),
    "4x2048": (4, 2048, 31),
    "8x512": (8, 512, 31),
    "4x8000": (4, 8000, 9),
}
"""Requests, tokens each, and how often; the GPU limits the last one."""

LAYERS = 24
CONFIG = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 2048,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
    "full_attention_interval": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
    * (LAYERS // 4),
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ARGUMENTS: dict[str, Any] = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "attention_backend": "triton",
    "linear_attn_backend": "triton",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "mamba_scheduler_strategy": "extra_buffer",
    "mamba_radix_cache_strategy": "extra_buffer",
    "page_size": 64,
    "mem_fraction_static": 0.5,
    "chunked_prefill_size": 8192,
    "cuda_graph_max_bs": 8,
    "cuda_graph_max_bs_decode": 8,
    "max_running_requests": 32,
    "disable_piecewise_cuda_graph": True,
    "random_seed": 7,
    "log_level": "warning",
}


def main() -> None:
    out = Path(sys.argv[1])
    found: dict[str, Any] = {"patches": os.environ.get("SGLANG_PERF_PATCHES"), "sizes": {}}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG))
        started = time.perf_counter()
        engine = _engine(folder, found)
        found["boot s"] = round(time.perf_counter() - started, 1)
        found["gpu MiB"] = _memory()
        try:
            for name, (count, length, times) in SIZES.items():
                _time(engine, count, length, seed=0)  # compiles what is new at this size
                taken = [_time(engine, count, length, seed) for seed in range(1, times + 1)]
                found["sizes"][name] = {
                    "median ms": round(statistics.median(taken), 2),
                    "quartiles ms": [round(q, 2) for q in statistics.quantiles(taken, n=4)],
                    "min ms": round(min(taken), 2),
                    "ms": [round(value, 2) for value in taken],
                }
                out.write_text(json.dumps(found))
                print(found["sglang"], found["patches"], name, found["sizes"][name]["median ms"])
            found["tokens"] = _tokens(engine)
            found["status"] = _status()
            out.write_text(json.dumps(found))
        finally:
            engine.shutdown()


def _engine(folder: str, found: dict[str, Any]) -> Any:
    import sglang
    from sglang.srt.server_args import ServerArgs

    found["sglang"] = sglang.__version__
    known = getattr(ServerArgs, "__dataclass_fields__", None) or ServerArgs.__struct_fields__
    wanted = ARGUMENTS | json.loads(os.environ.get("ARGUMENTS", "{}"))
    found["dropped"] = [name for name in wanted if name not in known]
    given = {name: value for name, value in wanted.items() if name in known}
    return sglang.Engine(model_path=folder, **given)


def _memory() -> list[int]:
    """MiB in use on each GPU."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.check_output(command, text=True).split()]


def _time(engine: Any, count: int, length: int, seed: int) -> float:
    """Milliseconds until each of `count` new prompts has its first token."""
    prompts = _prompts(count, length, seed)
    started = time.perf_counter()
    engine.generate(input_ids=prompts, sampling_params=_greedy(1))
    return 1e3 * (time.perf_counter() - started)


def _tokens(engine: Any) -> list[list[int]]:
    """Greedy tokens: new prompts, then the same with a longer end, which hit the prefix cache."""
    prompts = _prompts(6, 700, seed=10_000)
    longer = [prompt + _prompts(1, 130, seed)[0] for seed, prompt in enumerate(prompts)]
    said = []
    for batch in (prompts, longer):
        for reply in engine.generate(input_ids=batch, sampling_params=_greedy(16)):
            said.append(list(reply["output_ids"]))
    return said


def _prompts(count: int, length: int, seed: int) -> list[list[int]]:
    draw = random.Random(f"{count} {length} {seed}")
    return [[draw.randrange(10, 31000) for _ in range(length)] for _ in range(count)]


def _greedy(tokens: int) -> dict[str, Any]:
    return {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}


def _status() -> Any:
    """Which patches are live in which process, and have run."""
    command = [sys.executable, "-m", "sglang_perf_patches", "status", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    try:
        return json.loads(done.stdout)
    except ValueError:
        return done.stdout[-500:] + done.stderr[-500:]


if __name__ == "__main__":
    main()
