"""How long a prefill server takes to send requests, stock and with ``mamba.pd-state-index``.

usage: python tests/mamba/gpu/state_index.py OUT.json

Rows are allotted by the pool, and requests sent by the scheduler code, of the sglang on PYTHONPATH,
0.5.23, on an NVIDIA GPU. Instead of a network there is a sender that keeps what it is given and
takes page indices that are still being copied, as Mooncake's does. The stream is idle, or waits for
another forward of about 2 ms, as a scheduler's may.
"""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "support" / "probe"))

import sides

from sglang_perf_patches.proof import lent

lent.lend_beside_wheels()

import sglang
import torch

import sglang_perf_patches
from sglang_perf_patches.live import engine
from sglang_perf_patches.proof.comparing import installed
from sglang_perf_patches.proof.mamba import scheduling, sending
from sglang_perf_patches.proof.mamba.batches import Request
from sglang_perf_patches.proof.mamba.rig import SMALL, Rig
from sglang_perf_patches.sets.mamba import state_slots

PATCH = "mamba.pd-state-index"
ROUNDS = 41
BUSY_CYCLES = 4_000_000
"""About 2 ms."""


def step(rig: Rig, scheduler: Any, count: int, cycles: int) -> tuple[float, float]:
    """Microseconds to allot the rows of a batch, and to send one of its requests."""
    pool = rig.pool
    pool.clear()
    tree = SimpleNamespace(prefixes={})
    reqs = [scheduling._request(None, tree, Request(64), number) for number in range(count)]
    torch.cuda.synchronize()
    began = time.perf_counter()
    pool.alloc(reqs)
    allotted = time.perf_counter() - began
    torch.cuda.synchronize()
    for req in reqs:
        req.disagg_kv_sender = sending.Sender()
    if cycles:
        forward = torch.cuda.Stream()
        with torch.cuda.stream(forward):
            torch.cuda._sleep(cycles)
        torch.cuda.current_stream().wait_stream(forward)
    began = time.perf_counter()
    for req in reqs:
        scheduler.send_kv_chunk(req, last_chunk=True)
    taken = time.perf_counter() - began
    torch.cuda.synchronize()
    for req in reqs:
        row = (req if hasattr(req, "req_pool_idx") else req.kv).req_pool_idx
        ((_, state, _),) = req.disagg_kv_sender.sent
        while isinstance(state, list):
            (state,) = state
        if int(state) != int(pool.req_index_to_mamba_index_mapping[row]) or not int(state):
            raise AssertionError(f"row {row} has another slot than {state}")
    return 1e6 * allotted, 1e6 * taken / count


def main(out: Path) -> None:
    torch.inference_mode().__enter__()
    rig = Rig(replace(SMALL, layers=1), "cuda", slots=600, requests=64)
    scheduler = sending.scheduler_of(rig.pool)
    engine.activate(PATCH, tree=installed())
    state = engine.activate(PATCH).of(PATCH)
    print(sglang.__version__, state)
    shown = sides.Sides()
    found: dict[str, Any] = {"sglang": sglang.__version__, "torch": torch.__version__}
    found["state"] = state.state
    step(rig, scheduler, 2, 0)  # the first request is stock's
    step(rig, scheduler, 2, 0)
    (slots,) = [each for each in vars(rig.pool).values() if isinstance(each, state_slots.Slots)]
    torch.cuda.set_sync_debug_mode("error")
    slots.keep([], [])
    torch.cuda.set_sync_debug_mode("default")
    found["keep us"] = 1e6 * min(_keep(slots) for _ in range(200))
    for stream, cycles in (("idle", 0), ("busy", BUSY_CYCLES)):
        for count in (1, 8, 64):
            taken: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
            for number in range(ROUNDS):
                for is_on in (False, True) if number % 2 else (True, False):
                    shown.show([] if is_on else None)
                    step(rig, scheduler, count, 0)
                    taken[is_on].append(step(rig, scheduler, count, cycles))
            row = {}
            for part, name in enumerate(("allot us", "send us")):
                for is_on in (False, True):
                    values = [each[part] for each in taken[is_on]]
                    side = "patched" if is_on else "stock"
                    row[f"{name} {side}"] = [round(q, 1) for q in statistics.quantiles(values, n=4)]
            whole = [
                (new[0] + count * new[1]) / (old[0] + count * old[1])
                for old, new in zip(taken[False], taken[True], strict=True)
            ]
            row["patched : stock"] = [round(q, 3) for q in statistics.quantiles(whole, n=4)]
            found[f"{stream}, {count}"] = row
            print(stream, count, json.dumps(row), flush=True)
            out.write_text(json.dumps(found, indent=1) + "\n")
    found["ran"] = engine.activate(PATCH).of(PATCH).ran
    out.write_text(json.dumps(found, indent=1) + "\n")
    sglang_perf_patches.deactivate()


def _keep(slots: Any) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    slots.keep([], [])
    return time.perf_counter() - began


if __name__ == "__main__":
    main(Path(sys.argv[1]))
