"""Requests in flight on a real decode-only server, with the patches that the process has.

usage: python in_flight.py OUT.json PAGE_SIZE [PROMPT_LENGTH ...]

Boots the Engine of the sglang on PYTHONPATH as the decode side of a disaggregated server, with the
fake transfer backend and dummy weights for a small GPT-OSS (window 128). Sends 64 prompts at once
for each length. Writes what `probe/sitecustomize.py` counted: most requests in flight, refused
ones, time to the first token of the burst, and whether both pools are whole after a drain. Run it
plain for stock, and under ``python -m sglang_perf_patches run`` for the patches.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
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

LAYERS = 8
CONFIG = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 1024,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "attention_bias": True,
    "hidden_act": "silu",
    "swiglu_limit": 7.0,
    "initial_context_length": 4096,
    "max_position_embeddings": 140000,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "router_aux_loss_coef": 0.9,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
REQUESTS, OUTPUT = 64, 192


def main(out: str, page_size: str, *lengths: str) -> int:
    """Boot, measure and write; 0 if the pools are whole at the end."""
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(CONFIG))
    probe = folder / "probe.json"
    os.environ["SWA_PROBE"] = str(probe)

    import sglang
    from sglang.srt.server_args import ServerArgs

    wanted: dict[str, Any] = {
        "model_path": str(folder),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "disaggregation_mode": "decode",
        "disaggregation_transfer_backend": "fake",
        "attention_backend": "triton",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "moe_runner_backend": "triton",
        "page_size": int(page_size),
        "max_total_tokens": 4_194_304,
        "swa_full_tokens_ratio": 1 / 64,
        "context_length": 140_000,
        "max_running_requests": REQUESTS,
        "mem_fraction_static": 0.7,
        "disable_cuda_graph": True,
        "disable_piecewise_cuda_graph": True,
        "cuda_graph_backend_prefill": "disabled",
        "random_seed": 0,
        "log_level": "warning",
    }
    known = inspect.signature(ServerArgs).parameters
    print("dropped", [name for name in wanted if name not in known], flush=True)
    began = time.monotonic()
    engine = sglang.Engine(**{k: v for k, v in wanted.items() if k in known})
    result: dict[str, Any] = {
        "sglang": sglang.__version__,
        "selection": os.environ.get("SGLANG_PERF_PATCHES"),
        "patches": _live(),
        "boot_s": round(time.monotonic() - began, 1),
        "loads": [],
    }
    loop = engine.loop
    for length in map(int, lengths or ("8192", "32768")):
        loop.run_until_complete(_burst(engine, 64, 1, 8))  # kernels compile
        _settled(probe)
        Path(f"{probe}.reset").touch()
        result["loads"].append(loop.run_until_complete(_burst(engine, length, REQUESTS, OUTPUT)))
        state = _settled(probe)
        whole = state["swa_free"] == state["swa_size"] and state["full_free"] == state["full_size"]
        result["loads"][-1] |= {"prompt": length, "pools_whole": whole, **state}
        print(json.dumps(result["loads"][-1]), flush=True)
        Path(out).write_text(json.dumps(result, indent=1) + "\n")
    engine.shutdown()
    return 0 if all(load["pools_whole"] for load in result["loads"]) else 1


def _fake_prefill(engine: Any, number: int) -> dict[str, Any]:
    """The address of the fake prefill server, if the release takes one."""
    wanted = {"bootstrap_host": "2.2.2.2", "bootstrap_port": 8998, "bootstrap_room": number}
    known = inspect.signature(engine.async_generate).parameters
    return {name: value for name, value in wanted.items() if name in known}


async def _burst(engine: Any, length: int, requests: int, output: int) -> dict[str, Any]:
    """Send equal requests at once; seconds to each one's first token, and what was refused."""
    began = time.monotonic()
    first: list[float] = []
    refused: list[str] = []
    tokens: list[Any] = []

    async def one(number: int) -> None:
        ids = [(7 * number + index) % 30000 + 10 for index in range(length)]
        sampling = {"temperature": 0, "max_new_tokens": output, "ignore_eos": True}
        try:
            stream = await engine.async_generate(
                input_ids=ids,
                sampling_params=sampling,
                stream=True,
                **_fake_prefill(engine, number),
            )
            start, last = None, None
            async for chunk in stream:
                start = start or time.monotonic() - began
                last = chunk
            reason = (last or {}).get("meta_info", {}).get("finish_reason") or {}
            if reason.get("type") == "abort":
                refused.append(str(reason.get("message")))
            else:
                first.append(start or 0.0)
                tokens.append(reason.get("length"))
        except Exception as error:
            refused.append(f"{type(error).__name__}: {error}")

    await asyncio.wait_for(asyncio.gather(*(one(n) for n in range(requests))), 150)
    return {
        "finished": len(first),
        "refused": len(refused),
        "message": refused[0][:200] if refused else "",
        "ttft_median_s": round(statistics.median(first), 3) if first else None,
        "ttft_last_s": round(max(first), 3) if first else None,
        "burst_s": round(time.monotonic() - began, 2),
    }


def _live() -> list[str]:
    """What is live in the scheduler, according to the project's own command; empty for stock."""
    command = [sys.executable, "-m", "sglang_perf_patches", "status", "--json"]
    told = subprocess.run(command, capture_output=True, text=True).stdout or "{}"
    return sorted(
        {
            f"{patch['id']}: {patch['state']}"
            for process in json.loads(told).get("processes", [])
            for patch in process["patches"]
            if patch["id"].startswith("swa.") and patch["state"] != "off"
        }
    )


def _settled(probe: Path) -> dict[str, Any]:
    """What the probe counted, once the server is idle."""
    for _ in range(80):
        time.sleep(0.5)
        if probe.exists() and probe.stat().st_mtime > time.time() - 1:
            state: dict[str, Any] = json.loads(probe.read_text())
            if state["idle"]:
                return state
    raise RuntimeError("the server did not become idle, or no probe runs in it")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
