"""One patched EAGLE Engine in which patches are on and off in turn: their effect on time.

Run ``python turns.py OUT.json PATCH[,PATCH …] [OPTION=VALUE …]`` under ``python -m
sglang_perf_patches run`` and with SGLANG_PERF_PATCHES=mla; options are those of ``engine.py``.
Boots differ by more than a patch does, so one Engine measures all sides: ``stock`` with all the
patches off, then one side more with each patch on (``PATCH+PATCH``: with both). Acceptance is real,
all sides get the same prompts, and their tokens are compared. It gives milliseconds per token of
whole batches with their prefill, and the median ratio of each side's turns to stock's with its
quartiles. A profile of each side gives the calls per verify step; CALLS=first takes them before the
times. Where several Engines boot at once, START_FILE names a file for which this one waits, after
it has booted and said READY.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from engine import DEFAULTS, PROBE, arguments, engine, patches, vocabulary
from seat import calls, timed

BATCHES = tuple(map(int, os.environ.get("BATCHES", "1,16,64").split(",")))
ROUNDS = int(os.environ.get("ROUNDS", "12"))
TOKENS = int(os.environ.get("TOKENS", "160"))


def main(out: Path, switched: list[str], given: list[str]) -> None:
    """Boot, measure in turns; write `out` after each part."""
    words = vocabulary(given)
    groups, switched = switched, [patch for group in switched for patch in group.split("+")]
    folder = Path(tempfile.mkdtemp(prefix="switch-"))
    os.environ |= {"SWITCH_PATCHES": ",".join(switched), "SWITCH_FOLDER": str(folder)}
    # All sides get the same prompts, which a prefix cache would find.
    server = engine(arguments([*given, "disable_radix_cache=true", "acceptance=real"], words))
    print("READY", flush=True)
    while os.environ.get("START_FILE") and not Path(os.environ["START_FILE"]).exists():
        time.sleep(0.05)
    sides = {"stock": switched}
    on = 0
    for group in groups:
        on += len(group.split("+"))
        sides[f"+ {group}"] = switched[on:]
    found: dict[str, Any] = {"switched": switched, "options": given}

    def turn(side: str) -> None:
        for patch in switched:
            (folder / patch).unlink(missing_ok=True)
        for patch in sides[side]:
            (folder / patch).touch()

    def counted() -> None:
        for side in sides:
            turn(side)
            found[f"calls, {side}"] = calls(server, words)
            out.write_text(json.dumps(found, indent=1) + "\n")
            print("CALLS", side, json.dumps(found[f"calls, {side}"]), flush=True)

    if os.environ.get("CALLS") == "first":
        for side in sides:
            turn(side)
            timed(server, words, 1, 1000, 32)
        counted()
    for count in BATCHES:
        for side in sides:
            turn(side)
            timed(server, words, count, 1000, 16)
        taken: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for number in range(ROUNDS):
            for side in list(sides)[:: 1 if number % 2 else -1]:
                turn(side)
                taken[side].append(timed(server, words, count, number, TOKENS))
        found[f"bs{count}"] = compared(taken)
        found |= patches()
        out.write_text(json.dumps(found, indent=1) + "\n")
        print(count, json.dumps(found[f"bs{count}"]["ratios"]), flush=True)
    if os.environ.get("CALLS") != "first":
        counted()
    print("TURNS", json.dumps({k: v for k, v in found.items() if k[:2] != "bs"}), flush=True)
    server.shutdown()


def compared(taken: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Times, ratios and tokens of the sides."""
    stock = [each["ms"] for each in taken["stock"]]
    ratios = {}
    for side, said in taken.items():
        if side != "stock":
            each = [one["ms"] / base for one, base in zip(said, stock, strict=True)]
            ratios[side] = [round(value, 3) for value in statistics.quantiles(each, n=4)]
    rounds = zip(*taken.values(), strict=True)
    pairs: list[tuple[str, ...]] = []
    for said_in_round in rounds:
        pairs += zip(*(said["each"] for said in said_in_round), strict=True)
    return {
        "ratios": ratios,
        "ms": {
            side: round(statistics.median(each["ms"] for each in said), 4)
            for side, said in taken.items()
        },
        "requests that all said the same of": [sum(len(set(p)) == 1 for p in pairs), len(pairs)],
        "different tokens": max(each["different"] for said in taken.values() for each in said),
        "tokens per verify step": {side: said[-1]["per_step"] for side, said in taken.items()},
        "turns": {side: [round(each["ms"], 4) for each in said] for side, said in taken.items()},
    }


if __name__ == "__main__":
    for _name, _value in DEFAULTS.items():
        os.environ.setdefault(_name, _value)
    _folders = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parent / "switch"), str(PROBE)]
    os.environ["PYTHONPATH"] = os.pathsep.join(_folders)
    main(Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:])
