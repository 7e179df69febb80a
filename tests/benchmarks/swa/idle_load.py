"""Whether an idle decode server serves a long prompt without ``max_tokens``.

usage: python idle_load.py OUT.json PAGE_SIZE RUNNING [GPU]

Boots the Engine of the sglang on PYTHONPATH as a decode-only server with the fake transfer backend,
for at most RUNNING requests (8 at page size 1, 5 at page size 64), with the sliding-window pool
that the release makes for them. Sends three prompts of 1,000 tokens with ``max_new_tokens`` 4096,
which stands for a request without ``max_tokens``. Each is aborted once it has `ENOUGH` tokens, or
after `PATIENCE` seconds. A short request before and after tells whether the server answers at all.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE))

from engines import CONFIG, boot  # noqa: E402
from in_flight import fake_prefill, settled  # noqa: E402

PROMPT, NEW, ENOUGH, PATIENCE = 1000, 4096, 400, 15.0

_ROOMS = itertools.count(100)


def main(out: str, page_size: str, running: str, gpu: str = "0") -> int:
    """Boot, ask and write; 0 if it could be asked."""
    wanted = {
        "base_gpu_id": int(gpu),
        "disaggregation_mode": "decode",
        "disaggregation_transfer_backend": "fake",
        "page_size": int(page_size),
        "max_total_tokens": 262_144,
        "context_length": 32_768,
        "max_running_requests": int(running),
        "mem_fraction_static": 0.6,
        "disable_cuda_graph": True,
    }
    engine, probe, result = boot(wanted, CONFIG, "SWA_PROBE")
    result |= {"page_size": int(page_size), "running": int(running), "asked": []}
    loop = engine.loop
    for what, length, new in (
        ("short", 64, 8),
        *((f"long {n}", PROMPT, NEW) for n in range(3)),
        ("short again", 64, 8),
    ):
        told = loop.run_until_complete(_ask(engine, length, new))
        result["asked"].append({"what": what, "prompt": length, "max_new_tokens": new} | told)
        print("ASKED", json.dumps(result["asked"][-1]), flush=True)
        Path(out).write_text(json.dumps(result, indent=1) + "\n")
    result |= settled(probe)
    Path(out).write_text(json.dumps(result, indent=1) + "\n")
    print("SETTLED", json.dumps(result), flush=True)
    engine.shutdown()
    return 0


async def _ask(engine: Any, length: int, new: int) -> dict[str, Any]:
    """Send one request; when its first token came, and how many tokens it got within its time."""
    room = next(_ROOMS)
    ids = [(7 * room + index) % 30000 + 10 for index in range(length)]
    sampling = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
    began = time.monotonic()
    first: list[float] = []
    tokens = 0

    async def read() -> None:
        nonlocal tokens
        stream = await engine.async_generate(
            input_ids=ids,
            sampling_params=sampling,
            stream=True,
            **fake_prefill(engine, room),
        )
        async for chunk in stream:
            first.append(time.monotonic() - began)
            tokens = int(chunk["meta_info"].get("completion_tokens") or 0)
            if tokens >= ENOUGH:
                return

    ended = "answered"
    try:
        await asyncio.wait_for(read(), PATIENCE)
    except asyncio.TimeoutError:
        ended = "slow" if first else "waits"
    except Exception as error:
        ended = f"{type(error).__name__}: {error}"[:300]
    engine.tokenizer_manager.abort_request(abort_all=True)
    await asyncio.sleep(1.0)
    return {
        "ended": ended,
        "first_token_s": round(first[0], 3) if first else None,
        "tokens": tokens,
    }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
