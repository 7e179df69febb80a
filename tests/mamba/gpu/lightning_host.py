"""What the patches add to a lightning-attention forward that has no wait to remove.

usage: python tests/mamba/gpu/lightning_host.py OUT.json

Two layers of the sglang on PYTHONPATH run on an NVIDIA GPU, many forwards a turn: on stock, with
mamba.zero-sync alone, and with mamba.lightning-rows beside it. Metadata and layers are timed apart.
"""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

from __future__ import annotations

import json
import statistics
import sys
import time
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
from sglang_perf_patches.proof.mamba.batches import FORWARDS
from sglang_perf_patches.proof.mamba.rig import Lightning

SIDES = ("none", "mamba.zero-sync", "mamba.zero-sync,mamba.lightning-rows")
ROUNDS = 12
FORWARDS_A_TURN = 60


def turn(rig: Any, wanted: Any, inputs: Any) -> tuple[float, float, float]:
    """Median microseconds of the metadata, of the layers, and until the GPU is done."""
    taken = []
    for _ in range(FORWARDS_A_TURN):
        batch = play.known_batch(rig, wanted)
        torch.cuda.synchronize()
        began = time.perf_counter()
        rig.backend.init_forward_metadata(batch)
        planned = time.perf_counter()
        for layer, given in zip(rig.layers, inputs, strict=True):
            rig.run(layer, batch, given)
        launched = time.perf_counter()
        torch.cuda.synchronize()
        taken.append((planned - began, launched - planned, time.perf_counter() - began))
    return tuple(1e6 * statistics.median(part) for part in zip(*taken[10:], strict=True))


def main(out: Path) -> None:
    torch.inference_mode().__enter__()
    rig = Lightning("seg_la", device="cuda")
    found: dict[str, Any] = {"sglang": sglang.__version__, "torch": torch.__version__}
    for name in ("none", "no mask", "half"):
        wanted = FORWARDS[name][0]
        inputs = rig.inputs(wanted.tokens)
        taken: dict[str, list[tuple[float, float, float]]] = {side: [] for side in SIDES}
        for number in range(ROUNDS):
            for side in SIDES if number % 2 else SIDES[::-1]:
                engine.activate(side, tree=installed())
                taken[side].append(turn(rig, wanted, inputs))
                sglang_perf_patches.deactivate()
        rows = {}
        for side, each in taken.items():
            parts = zip(*each, strict=True)
            rows[side] = [[round(q, 1) for q in statistics.quantiles(p, n=4)] for p in parts]
            print(sglang.__version__, name, side, rows[side], flush=True)
        found[name] = rows
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
