"""What part of a step the ranks of a server spend in gloo's collectives.

    python tests/benchmarks/rig/shares.py OUT.json SHAPE [NAME=VALUE …]

It boots a stock Engine and decodes batches (BATCHES, "1 16"), each of prompts of 256 tokens for 384
tokens (TOKENS). For each rank it prints how long the rank was in collectives of tensors on the host
while the batch decoded. A rank that comes first waits there for the others, so this is at most what
faster exchanges save. NAME=VALUE is as ``turns.py`` has it.

OUT.json: ``{"options", "boot s", "batches": {REQUESTS: {"ms per step", "ranks": [{"share", "calls
per step", WHAT: {"calls per step", "us per call"}}]}}}``.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from engine import Server, parsed

BATCHES = tuple(map(int, os.environ.get("BATCHES", "1 16").split()))
TOKENS = int(os.environ.get("TOKENS", "384"))
_EDGE_S = 0.15
"""Of a batch's time, what is left out at both ends: its prefill, and what follows it."""

Reading = tuple[float, dict[str, tuple[int, float]]]
"""A time, and the calls and seconds of each collective until then."""


def measured(server: Server, count: int, folder: Path) -> dict[str, Any]:
    server.generate(server.prompts(count, 256), 32, **_handed_over(server, count))
    began = time.monotonic()
    replies = server.generate(server.prompts(count, 256), TOKENS, **_handed_over(server, count))
    ended = time.monotonic()
    time.sleep(0.1)
    steps = (replies.steps / count or TOKENS) / (ended - began)
    found: dict[str, Any] = {"ms per step": round(1e3 / steps, 3), "ranks": []}
    for file in sorted(folder.iterdir()):
        readings = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        inside = [each for each in readings if began + _EDGE_S < each[0] < ended - _EDGE_S]
        if len(inside) > 1 and inside[0][1] != inside[-1][1]:
            found["ranks"].append(_between(inside[0], inside[-1], steps))
    return found


def _handed_over(server: Server, count: int) -> dict[str, Any]:
    """Arguments of requests to a decode server without a prefill server (backend "fake")."""
    if server.engine.server_args.disaggregation_mode != "decode":
        return {}
    rooms = [random.getrandbits(62) for _ in range(count)]
    return {"bootstrap_host": "2.2.2.2", "bootstrap_room": rooms}


def _between(first: Reading, last: Reading, steps: float) -> dict[str, Any]:
    """What was spent between two readings, at so many steps per second."""
    wall = last[0] - first[0]
    spent = {}
    for what, (calls, seconds) in last[1].items():
        before = first[1].get(what, (0, 0.0))
        if calls > before[0]:
            spent[what] = calls - before[0], seconds - before[1]
    return {
        "share": round(sum(seconds for _, seconds in spent.values()) / wall, 4),
        "calls per step": round(sum(calls for calls, _ in spent.values()) / wall / steps, 2),
        **{
            what: {
                "calls per step": round(calls / wall / steps, 2),
                "us per call": round(1e6 * seconds / calls, 1),
            }
            for what, (calls, seconds) in spent.items()
        },
    }


def main(words: list[str]) -> int:
    if len(words) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    out, shape, *rest = words
    options, model = parsed(rest)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RIG_EXCHANGES"] = folder
        os.environ["SGLANG_PERF_PATCHES"] = "none"
        with closing(Server(shape, options, model, asks=False)) as server:
            results: dict[str, Any] = {"options": rest, "boot s": server.boot_s, "batches": {}}
            for count in BATCHES:
                results["batches"][count] = measured(server, count, Path(folder))
                print(count, json.dumps(results["batches"][count]), flush=True)
                Path(out).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
