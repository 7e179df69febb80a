"""What the metadata of a prefill takes on the host: stock, and with ``mamba.zero-sync``.

usage: python tests/mamba/gpu/metadata_host.py OUT.json

For the gated-delta-net backend of the sglang on PYTHONPATH, on an NVIDIA GPU: microseconds until a
forward's metadata and chunk indices are launched, and until they are there. The GPU is idle, or has
2 ms of other work. A function profile says where the time of either side goes.
"""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

from __future__ import annotations

import cProfile
import io
import json
import pstats
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from sglang_perf_patches.proof import lent

lent.lend_beside_wheels()

import sglang
import torch

import sglang_perf_patches
from sglang_perf_patches.live import engine
from sglang_perf_patches.proof.comparing import installed
from sglang_perf_patches.proof.mamba import play
from sglang_perf_patches.proof.mamba.batches import Batch, Request
from sglang_perf_patches.proof.mamba.rig import SMALL, Rig

CASES = {
    "1x519": Batch((Request(519),)),
    "8x512": Batch((Request(512),) * 8),
    "4x2000": Batch((Request(2000),) * 4),
    "8x512 untracked": Batch((Request(512, tracked=False),) * 8),
    "8x512 no tracking": Batch((Request(512),) * 8, tracking=False),
}
SIDES = ("none", "mamba")
ROUNDS = 12
STEPS = 40
STREAMS = {"idle": 0, "busy": 4_000_000}
"""Cycles of other work; about 2 ms."""


def turn(rig: Any, wanted: Any, cycles: int) -> tuple[float, float]:
    """Median microseconds on the host, and until the GPU is done."""
    taken = []
    for _ in range(STEPS):
        batch = prepared(rig, wanted, cycles)
        began = time.perf_counter()
        plan(rig, batch)
        done = time.perf_counter()
        torch.cuda.synchronize()
        taken.append((done - began, time.perf_counter() - began))
    host, whole = zip(*taken[8:], strict=True)
    return 1e6 * statistics.median(host), 1e6 * statistics.median(whole)


def prepared(rig: Any, wanted: Any, cycles: int) -> Any:
    """The batch, with the GPU idle, or busy for so many cycles from now on."""
    batch = play.known_batch(rig, wanted)
    torch.cuda.synchronize()
    if cycles:
        torch.cuda._sleep(cycles)
    return batch


def plan(rig: Any, batch: Any) -> None:
    rig.backend.init_forward_metadata(batch)
    start = rig.backend.forward_metadata.query_start_loc
    for function in play._chunk_functions():
        function(start, 64)


def where(rig: Any, wanted: Any, cycles: int) -> str:
    profile = cProfile.Profile()
    for _ in range(60):
        batch = prepared(rig, wanted, cycles)
        profile.enable()
        plan(rig, batch)
        profile.disable()
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(28)
    return text.getvalue()


def main(out: Path) -> None:
    torch.inference_mode().__enter__()
    rig = Rig(replace(SMALL, layers=1), "cuda", slots=60)
    found: dict[str, Any] = {"sglang": sglang.__version__, "torch": torch.__version__}
    for stream, cycles in STREAMS.items():
        for name, wanted in CASES.items():
            taken: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
            for number in range(ROUNDS):
                for side in SIDES if number % 2 else SIDES[::-1]:
                    engine.activate(side, tree=installed())
                    taken[side].append(turn(rig, wanted, cycles))
                    sglang_perf_patches.deactivate()
            rows = {
                side: [
                    [round(q, 1) for q in statistics.quantiles(part, n=4)]
                    for part in zip(*each, strict=True)
                ]
                for side, each in taken.items()
            }
            found[f"{name}, {stream}"] = rows
            print(sglang.__version__, name, stream, json.dumps(rows), flush=True)
            out.write_text(json.dumps(found, indent=1) + "\n")
    for side in SIDES:
        engine.activate(side, tree=installed())
        for stream, cycles in STREAMS.items():
            spent = where(rig, CASES["8x512"], cycles)
            print(sglang.__version__, side, stream, spent, flush=True)
        sglang_perf_patches.deactivate()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
