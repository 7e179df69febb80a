"""What giving back sliding-window KV waits for, and how long an ordinary decode load takes.

usage: python free_load.py OUT.json PAGE_SIZE [GPU]

Boots an Engine of the sglang on PYTHONPATH with a small GPT-OSS of dummy weights (window 128), and
has it decode many requests: once counted, then timed. Where several run at once, they take turns
(`engines.py`). The scheduler counts PyTorch's own warnings of synchronizing calls
(``torch.cuda.set_sync_debug_mode``). It counts them within every step that evicts windows, and
within the end of every request (`probe/free_counts.py`). Run it plain for stock, and under ``python
-m sglang_perf_patches run`` with SGLANG_PERF_PATCHES=swa.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE))

from engines import CONFIG, boot, turn, wait_for_all  # noqa: E402

REQUESTS, PROMPT = 128, 300
OUTPUTS = {"long replies": 400, "short replies": 40}
ROUNDS = 4


def main(out: str, page_size: str, gpu: str = "0") -> int:
    """Boot, count, time and write."""
    wanted = {
        "base_gpu_id": int(gpu),
        "page_size": int(page_size),
        "context_length": 8192,
        "max_total_tokens": 400_000,
        "max_running_requests": REQUESTS,
        "mem_fraction_static": 0.6,
        "cuda_graph_max_bs": REQUESTS,
        "cuda_graph_max_bs_decode": REQUESTS,
    }
    engine, probe, result = boot(wanted, CONFIG, "SWA_FREE_PROBE")
    result |= {"page_size": int(page_size), "tokens_per_s": {load: [] for load in OUTPUTS}}
    wait_for_all()
    output = max(OUTPUTS.values())
    with turn():
        _round(engine, 0, output)  # kernels compile
        Path(f"{probe}.count").touch()
        _round(engine, 1, output)
        Path(f"{probe}.count").unlink()
        time.sleep(0.5)
    result["counted"] = json.loads(probe.read_text()) if probe.exists() else None
    print("COUNTED", json.dumps(result["counted"]), flush=True)
    for number in range(ROUNDS):
        for load, output in OUTPUTS.items():
            with turn():
                seconds = _round(engine, 2 + number, output)
            result["tokens_per_s"][load].append(round(REQUESTS * output / seconds, 1))
        print("ROUND", json.dumps(result["tokens_per_s"]), flush=True)
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
