"""One patched EAGLE Engine in which one patch is on and off in turn: its effect on time.

Run ``python turns.py OUT.json PATCH [OPTION=VALUE …]`` under ``python -m sglang_perf_patches run``
and with SGLANG_PERF_PATCHES=mla; options are those of ``engine.py``. Boots differ by more than a
patch does, so one Engine measures both sides, with simulated acceptance. It gives milliseconds per
token of whole batches with their prefill, and the median ratio of the two sides' turns with its
quartiles. A profile of each side gives the calls per verify step and how long they took.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from engine import (
    BATCHES,
    DEFAULTS,
    OUTPUT,
    PROBE,
    WORDS,
    arguments,
    engine,
    generate,
    patches,
    profiled,
)

ROUNDS = 12
SIDES = ("stock", "patched")


def main(out: Path, patch: str, given: list[str]) -> None:
    """Boot, measure in turns; write `out` after each part."""
    words = WORDS["simulated"]
    off = Path(tempfile.mkdtemp()) / "off"
    os.environ |= {
        "SGLANG_SIMULATE_ACC_LEN": "2.5",
        "SWITCH_PATCH": patch,
        "SWITCH_FILE": str(off),
    }
    server = engine(arguments(given, words))
    found: dict[str, Any] = {"patch": patch, "options": given}

    def turn(side: str) -> None:
        off.unlink(missing_ok=True) if side == "patched" else off.touch()

    for count in BATCHES:
        generate(server, words, count, 0, 16)
        taken: dict[str, list[float]] = {side: [] for side in SIDES}
        for number in range(ROUNDS):
            for side in SIDES if number % 2 else SIDES[::-1]:
                turn(side)
                # Prompts are new in each turn: the prefix cache would find known ones.
                seed = 2 * number + SIDES.index(side) + 1
                taken[side].append(1e3 * generate(server, words, count, seed)[0] / OUTPUT)
        ratios = [new / old for old, new in zip(taken["stock"], taken["patched"], strict=True)]
        found[f"bs{count}"] = {
            **{side: round(statistics.median(taken[side]), 3) for side in SIDES},
            "ratio": [round(value, 3) for value in statistics.quantiles(ratios, n=4)],
        } | {f"{side} turns": [round(value, 3) for value in taken[side]] for side in SIDES}
        found |= patches()
        out.write_text(json.dumps(found, indent=1) + "\n")
    for side in SIDES:
        turn(side)
        found[f"profile {side}"] = calls(server, words, out.with_suffix(f".{side}.trace.gz"))
        out.write_text(json.dumps(found, indent=1) + "\n")
    print("TURNS", json.dumps(found), flush=True)
    server.shutdown()


def calls(server: Any, words: int, kept: Path) -> dict[str, Any]:
    """Calls of the runtime per verify step of one request, [how many, microseconds in all]."""
    steps, events = profiled(server, words, kept)
    counts: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for event in events:
        if str(event.get("cat", "")) in {"cuda_runtime", "cuda_driver", "gpu_memcpy"}:
            counts[event["name"]] += 1
            spent[event["name"]] += event.get("dur", 0)
    often = {name for name, count in counts.items() if count >= steps / 2}
    return {"verify_steps": steps} | {
        name: [round(counts[name] / steps, 2), round(spent[name] / steps, 1)]
        for name in sorted(often)
    }


if __name__ == "__main__":
    for _name, _value in DEFAULTS.items():
        os.environ.setdefault(_name, _value)
    _folders = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parent / "switch"), str(PROBE)]
    os.environ["PYTHONPATH"] = os.pathsep.join(_folders)
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
