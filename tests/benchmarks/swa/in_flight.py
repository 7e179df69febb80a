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
import statistics
import sys
import time
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE))

from engines import CONFIG, boot  # noqa: E402

REQUESTS, OUTPUT = 64, 192


def main(out: str, page_size: str, *lengths: str) -> int:
    """Boot, measure and write; 0 if the pools are whole at the end."""
    wanted = {
        "disaggregation_mode": "decode",
        "disaggregation_transfer_backend": "fake",
        "page_size": int(page_size),
        "max_total_tokens": 4_194_304,
        "swa_full_tokens_ratio": 1 / 64,
        "context_length": 140_000,
        "max_running_requests": REQUESTS,
        "mem_fraction_static": 0.7,
        "disable_cuda_graph": True,
    }
    engine, probe, result = boot(wanted, CONFIG, "SWA_PROBE")
    result["loads"] = []
    loop = engine.loop
    for length in map(int, lengths or ("8192", "32768")):
        loop.run_until_complete(_burst(engine, 64, 1, 8))  # kernels compile
        settled(probe)
        Path(f"{probe}.reset").touch()
        result["loads"].append(loop.run_until_complete(_burst(engine, length, REQUESTS, OUTPUT)))
        state = settled(probe)
        whole = state["swa_free"] == state["swa_size"] and state["full_free"] == state["full_size"]
        result["loads"][-1] |= {"prompt": length, "pools_whole": whole, **state}
        print(json.dumps(result["loads"][-1]), flush=True)
        Path(out).write_text(json.dumps(result, indent=1) + "\n")
    engine.shutdown()
    return 0 if all(load["pools_whole"] for load in result["loads"]) else 1


def fake_prefill(engine: Any, number: int) -> dict[str, Any]:
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
                **fake_prefill(engine, number),
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


def settled(probe: Path) -> dict[str, Any]:
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
