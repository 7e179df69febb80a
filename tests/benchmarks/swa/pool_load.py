"""An ordinary server that KV limits, with the pools that this process's patches make.

usage: python pool_load.py OUT.json SHAPE [GPU]     (SHAPE: gpt-oss or gemma)

Boots an Engine of the sglang on PYTHONPATH with a fixed KV budget in bytes, whatever else is on the
GPU (`probe/sitecustomize.py` sets it). It has dummy weights of a small model whose layers and KV
heads are of that shape. Sends more long prompts at once than the budget holds, twice, then goes on
with some of the conversations. Where several run at once, they take turns (`engines.py`).

Writes tokens that fit, seconds, tokens a second, most requests in a batch, retractions, and cached
tokens. Run it plain for stock, and under ``python -m sglang_perf_patches run`` with
SGLANG_PERF_PATCHES=swa.pool-ratio.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE))

from engines import CONFIG, boot, turn, wait_for_all  # noqa: E402


@dataclass(frozen=True)
class Shape:
    """Layers of a model, and a load that its KV budget is too small for.

    Attributes:
        pattern: kinds of layers, repeated.
        layers: how many.
        window: in tokens.
        kv_heads: of one layer.
        head_dim: of one head.
        budget: bytes for KV.
        running: ``--max-running-requests``.
        prompt: tokens of each prompt.
        requests: how many at once.
    """

    pattern: tuple[str, ...]
    layers: int
    window: int
    kv_heads: int
    head_dim: int
    budget: int
    running: int
    prompt: int
    requests: int


SHAPES = {
    "gpt-oss": Shape(
        ("sliding_attention", "full_attention"), 24, 128, 8, 64, 12 << 30, 128, 4000, 256
    ),
    "gemma": Shape(
        ("sliding_attention",) * 5 + ("full_attention",), 24, 1024, 4, 128, 8 << 30, 32, 16_000, 64
    ),
}
OUTPUT = 400
AGAIN, MORE, ROUNDS = 24, 200, 2


def main(out: str, name: str, gpu: str = "0") -> int:
    """Boot, measure and write."""
    shape = SHAPES[name]
    os.environ["SWA_POOL_BYTES"] = str(shape.budget)
    wanted = {
        "base_gpu_id": int(gpu),
        "context_length": 32_768,
        "max_running_requests": shape.running,
        "mem_fraction_static": 0.7,
        "cuda_graph_max_bs": shape.running,
        "cuda_graph_max_bs_decode": shape.running,
        "log_level": "info",
    }
    engine, probe, result = boot(wanted, _config(shape), "SWA_POOL_PROBE")
    result |= {"shape": name, "loads": []}
    wait_for_all()
    with turn():  # kernels compile
        _load(engine, [_prompt(shape, number)[:4000] for number in range(shape.running // 4)], 64)
    replies: list[list[int]] = []
    for turns in range(1, 1 + ROUNDS):
        prompts = [_prompt(shape, 1000 * turns + number) for number in range(shape.requests)]
        with turn():
            Path(f"{probe}.reset").touch()
            told, replies = _load(engine, prompts, OUTPUT)
            _write(result, out, {"load": f"all at once, {turns}"} | told | _counted(probe))
    # What the prefix cache still knows of the last ones: their windows are in the smaller pool.
    longer = [prompts[n] + replies[n] + _prompt(shape, 5000 + n)[:MORE] for n in range(-AGAIN, 0)]
    with turn():
        Path(f"{probe}.reset").touch()
        told, _ = _load(engine, longer, 64)
        _write(result, out, {"load": f"{AGAIN} conversations go on"} | told | _counted(probe))
    engine.shutdown()
    return 0


def _config(shape: Shape) -> dict[str, Any]:
    kinds = [shape.pattern[n % len(shape.pattern)] for n in range(shape.layers)]
    return CONFIG | {
        "hidden_size": 512,
        "intermediate_size": 512,
        "num_hidden_layers": shape.layers,
        "layer_types": kinds,
        "num_attention_heads": 2 * shape.kv_heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "sliding_window": shape.window,
    }


def _prompt(shape: Shape, number: int) -> list[int]:
    state, ids = 12345 + 7919 * number, []
    for _ in range(shape.prompt):
        state = (1103515245 * state + 12345) % 2**31
        ids.append(10 + (state >> 8) % 30000)
    return ids


def _load(
    engine: Any, prompts: list[list[int]], output: int
) -> tuple[dict[str, Any], list[list[int]]]:
    sampling = {"temperature": 0, "max_new_tokens": output, "ignore_eos": True}
    began = time.monotonic()
    answers = engine.generate(input_ids=prompts, sampling_params=sampling)
    seconds = time.monotonic() - began
    told = {
        "requests": len(prompts),
        "seconds": round(seconds, 2),
        "output_tokens_per_s": round(len(prompts) * output / seconds, 1),
        "cached_tokens": sum(answer["meta_info"].get("cached_tokens", 0) for answer in answers),
        "prompt_tokens": sum(map(len, prompts)),
        "finished": sum(
            (answer["meta_info"].get("finish_reason") or {}).get("type") == "length"
            for answer in answers
        ),
    }
    return told, [list(answer.get("output_ids") or ()) for answer in answers]


def _counted(probe: Path) -> dict[str, Any]:
    time.sleep(0.5)
    return dict(json.loads(probe.read_text())) if probe.exists() else {}


def _write(result: dict[str, Any], out: str, load: dict[str, Any]) -> None:
    result["loads"].append(load)
    print("LOAD", json.dumps(load), flush=True)
    Path(out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
