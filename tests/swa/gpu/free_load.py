"""What giving back sliding-window KV waits for, and how long an ordinary decode load takes.

usage: python free_load.py OUT.json PAGE_SIZE [GPU]

Boots an Engine of the sglang on PYTHONPATH with a small GPT-OSS of dummy weights (window 128), and
has it decode many requests: once counted, then timed. The scheduler counts PyTorch's own warnings
of synchronizing calls (``torch.cuda.set_sync_debug_mode``). It counts them within every step that
evicts windows, and within the end of every request (`probe/free_counts.py`). Run it plain for
stock, and under ``python -m sglang_perf_patches run`` with SGLANG_PERF_PATCHES=swa.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE))

from in_flight import CONFIG, _live  # noqa: E402
from pool_load import options  # noqa: E402

os.environ.setdefault("SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK", "1")
os.environ.setdefault("SGLANG_DISABLE_CUDNN_CHECK", "1")

REQUESTS, PROMPT, OUTPUT, ROUNDS = 128, 300, 600, 4


def main(out: str, page_size: str, gpu: str = "0") -> int:
    """Boot, count, time and write."""
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(CONFIG))
    probe = folder / "probe.json"
    os.environ["SWA_FREE_PROBE"] = str(probe)

    import sglang

    wanted: dict[str, Any] = {
        "model_path": str(folder),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "base_gpu_id": int(gpu),
        "attention_backend": "triton",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "moe_runner_backend": "triton",
        "page_size": int(page_size),
        "context_length": 8192,
        "max_total_tokens": 400_000,
        "max_running_requests": REQUESTS,
        "mem_fraction_static": 0.6,
        "cuda_graph_max_bs": REQUESTS,
        "disable_piecewise_cuda_graph": True,
        "cuda_graph_backend_prefill": "disabled",
        "random_seed": 0,
        "log_level": "warning",
    }
    known = options()
    print("dropped", [key for key in wanted if key not in known], flush=True)
    began = time.monotonic()
    engine = sglang.Engine(**{key: value for key, value in wanted.items() if key in known})
    result: dict[str, Any] = {
        "sglang": sglang.__version__,
        "selection": os.environ.get("SGLANG_PERF_PATCHES"),
        "page_size": int(page_size),
        "patches": _live(),
        "boot_s": round(time.monotonic() - began, 1),
    }
    print("READY", result["boot_s"], result["patches"], flush=True)
    _round(engine, 0, 40)
    Path(f"{probe}.count").touch()
    _round(engine, 1, OUTPUT)
    Path(f"{probe}.count").unlink()
    time.sleep(0.5)
    result["counted"] = json.loads(probe.read_text()) if probe.exists() else None
    print("COUNTED", json.dumps(result["counted"]), flush=True)
    result["tokens_per_s"] = []
    for number in range(ROUNDS):
        seconds = _round(engine, 2 + number, OUTPUT)
        result["tokens_per_s"].append(round(REQUESTS * OUTPUT / seconds, 1))
        print("ROUND", result["tokens_per_s"][-1], flush=True)
        Path(out).write_text(json.dumps(result, indent=1) + "\n")
    engine.shutdown()
    return 0


def _round(engine: Any, number: int, output: int) -> float:
    prompts = [
        [(31 * (request + 1000 * number) + 7 * index) % 30000 + 10 for index in range(PROMPT)]
        for request in range(REQUESTS)
    ]
    sampling = {"temperature": 0, "max_new_tokens": output, "ignore_eos": True}
    began = time.monotonic()
    engine.generate(input_ids=prompts, sampling_params=sampling)
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
