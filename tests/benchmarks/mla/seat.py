"""One Engine that does as told: ``python seat.py REPLIES [OPTION=VALUE …]``.

Options are those of ``engine.py``. Each line on standard input is a JSON list, ``[what, …]``; each
answer is a line of JSON in the file REPLIES. ``fleet.py`` commands several of them in turn. With
$COMPARE_OUT set the Engine compares each draft-extend, as ``compare/`` says.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import os
import sys
import time
import traceback
from collections import Counter
from typing import Any

from engine import (
    DEFAULTS,
    PROBE,
    arguments,
    engine,
    generate,
    patches,
    profiled,
    vocabulary,
)

PROMPT = int(os.environ.get("PROMPT", "256"))
"""Tokens: short, since a prefill's time is not what is measured."""

LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
CALLS = ("cudaGraphLaunch", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpyAsync")


def main(replies: str, given: list[str]) -> None:
    """Boot, then answer until told to end."""
    words = vocabulary(given)
    with open(replies, "w") as out:

        def say(**found: Any) -> None:
            out.write(json.dumps(found) + "\n")
            out.flush()

        began = time.time()
        try:
            server = engine(arguments(given, words))
        except BaseException:
            say(error=traceback.format_exc())
            raise
        say(boot_s=round(time.time() - began, 1))
        for line in sys.stdin:
            what, *details = json.loads(line)
            try:
                if what == "end":
                    server.shutdown()
                    say(ended=True)
                    return
                say(**{"time": timed, "profile": calls}[what](server, words, *details))
            except Exception:
                say(error=traceback.format_exc())


def timed(server: Any, words: int, count: int, seed: int, output: int) -> dict[str, Any]:
    """Milliseconds per token of a whole batch, its prefill included, and what it said."""
    seconds, outputs = generate(server, words, count, seed, output, PROMPT)
    said = [each["output_ids"] for each in outputs]
    steps = sum(each["meta_info"].get("spec_verify_ct") or 0 for each in outputs)
    return {
        "ms": 1e3 * seconds / output,
        "tokens": hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16],
        "each": [hashlib.sha256(json.dumps(one).encode()).hexdigest()[:8] for one in said],
        "different": len({token for one in said for token in one}),
        "per_step": round(output * count / max(1, steps), 3),
        **patches(),
    }


def calls(server: Any, words: int) -> dict[str, Any]:
    """Of one request: calls per verify step, and for how much of its time the GPU was busy."""
    steps, events = profiled(server, words)
    counts: Counter[str] = Counter()
    spans: list[tuple[float, float]] = []
    for event in events:
        kind, name = str(event.get("cat", "")), str(event.get("name", ""))
        if kind in {"cuda_runtime", "cuda_driver"}:
            counts["kernel launches" if name in LAUNCHES else name] += 1
        if kind in {"kernel", "gpu_memcpy", "gpu_memset"} and event.get("ph") == "X":
            spans.append((event["ts"], event["ts"] + event["dur"]))
            counts[kind] += 1
            if name.startswith("Memcpy DtoH"):
                counts["copies to the host"] += 1
    busy = end = 0.0
    for start, stop in sorted(spans):
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    first = min(spans)[0] if spans else 0.0
    shown = ("kernel launches", *CALLS, "kernel", "gpu_memcpy", "copies to the host")
    return {
        "verify_steps": steps,
        "per_step": {name: round(counts[name] / steps, 2) for name in shown},
        "stream syncs in": {name: round(n / steps, 2) for name, n in _syncs(events).items()},
        "busy_ms_per_step": round(busy / 1e3 / steps, 3),
        "ms_per_step": round((end - first) / 1e3 / steps, 3),
    }


def _syncs(events: list[dict[str, Any]]) -> Counter[str]:
    """The operators of PyTorch that waited for a stream, outermost first."""
    spans = [each for each in events if each.get("ph") == "X"]
    ops = sorted(
        (each for each in spans if each.get("cat") == "cpu_op"), key=lambda each: float(each["ts"])
    )
    starts = [op["ts"] for op in ops]
    found: Counter[str] = Counter()
    for sync in spans:
        if sync.get("name") != "cudaStreamSynchronize":
            continue
        at = sync["ts"]
        near = ops[bisect.bisect(starts, at - 1e5) : bisect.bisect(starts, at)]
        around = [op for op in near if op["tid"] == sync["tid"] and at <= op["ts"] + op["dur"]]
        found[" > ".join(op["name"] for op in around) or "no operator"] += 1
    return found


if __name__ == "__main__":
    for _name, _value in DEFAULTS.items():
        os.environ.setdefault(_name, _value)
    _hook = (
        [str(PROBE.parents[1] / "benchmarks/mla/compare")] if os.environ.get("COMPARE_OUT") else []
    )
    os.environ["PYTHONPATH"] = os.pathsep.join([os.environ["PYTHONPATH"], *_hook, str(PROBE)])
    main(sys.argv[1], sys.argv[2:])
