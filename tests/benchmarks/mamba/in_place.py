"""FlashInfer's GDN prefill with states in place, and with states copied out and back as stock does.

usage: python tests/benchmarks/mamba/in_place.py OUT.json

The kernel alone, at 32 heads of 128, on one GPU: whether outputs and states are equal bit by bit,
and microseconds of the host and of a call, by requests and tokens. *stock* makes its indices and
offsets in each layer; *copied* has them from before; *in place* gives the kernel the pool. Where
FlashInfer splits sequences (``cp``), a state is read by one block and written by another.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

HEADS, KEY_HEADS, WIDTH, SLOTS = 32, 16, 128, 80
BATCHES = ((1, 130), (1, 519), (3, 300), (8, 512), (16, 512), (2, 1500))
COMPARED, TIMED, ROUNDS = 12, 30, 5


class Sides:
    """One batch, and the ways to call the kernel for it."""

    def __init__(self, count: int, length: int) -> None:
        """Draw it."""
        self.draw = torch.Generator("cuda").manual_seed(1)
        tokens = count * length
        norm = torch.nn.functional.normalize
        self.slots = torch.randperm(SLOTS, generator=self.draw, device="cuda")[:count].int()
        self.ready = self.slots.long()
        self.output = torch.empty(tokens, HEADS, WIDTH, device="cuda", dtype=torch.bfloat16)
        self.starts = torch.arange(0, tokens + 1, length, device="cuda", dtype=torch.int32)
        self.given = {
            "q": norm(self._random(tokens, KEY_HEADS, WIDTH), dim=-1).bfloat16(),
            "k": norm(self._random(tokens, KEY_HEADS, WIDTH), dim=-1).bfloat16(),
            "v": self._random(tokens, HEADS, WIDTH).bfloat16(),
            "g": torch.exp(-torch.rand(tokens, HEADS, generator=self.draw, device="cuda")),
            "beta": torch.rand(tokens, HEADS, generator=self.draw, device="cuda"),
            "output_final_state": True,
            "output": self.output,
            "cu_seqlens": self.starts.long(),
        }

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.draw, device="cuda")

    def pool(self) -> torch.Tensor:
        """The same random states."""
        draw = torch.Generator("cuda").manual_seed(2)
        return torch.randn(SLOTS, HEADS, WIDTH, WIDTH, generator=draw, device="cuda") * 0.1

    def stock(self, pool: torch.Tensor) -> None:
        """As a layer of stock's does."""
        slots = torch.where(self.slots >= 0, self.slots, SLOTS - 1).long()
        before = pool[slots].float()
        after = torch.empty_like(before)
        starts = {"cu_seqlens": self.starts.long()}
        _kernel(**self.given | starts, initial_state=before, output_state=after)
        pool.index_copy_(0, slots, after.to(pool.dtype))

    def copied(self, pool: torch.Tensor) -> None:
        """With indices and offsets that are there."""
        before = pool.index_select(0, self.ready)
        after = torch.empty_like(before)
        _kernel(**self.given, initial_state=before, output_state=after)
        pool.index_copy_(0, self.ready, after)

    def in_place(self, pool: torch.Tensor) -> None:
        """With the states in the pool."""
        _kernel(**self.given, initial_state=pool, output_state=pool, state_indices=self.ready)


def _kernel(**given: Any) -> None:
    from flashinfer.gdn_prefill import chunk_gated_delta_rule

    chunk_gated_delta_rule(**given)


def measured(count: int, length: int) -> dict[str, Any]:
    """Bits and times of one batch."""
    sides = Sides(count, length)
    ways = {"stock": sides.stock, "copied": sides.copied, "in place": sides.in_place}
    equal = dict.fromkeys(ways, 0)
    for _ in range(COMPARED):
        outputs = {}
        for name, way in ways.items():
            pool = sides.pool()
            sides.output.fill_(7)
            way(pool)
            outputs[name] = (sides.output.clone(), pool)
        for name, pair in outputs.items():
            equal[name] += all(map(torch.equal, pair, outputs["stock"]))
    host: dict[str, list[float]] = {name: [] for name in ways}
    whole: dict[str, list[float]] = {name: [] for name in ways}
    pool = sides.pool()
    for _ in range(ROUNDS):
        for name, way in ways.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(TIMED):
                way(pool)
            host[name].append((time.perf_counter() - began) / TIMED * 1e6)
            torch.cuda.synchronize()
            whole[name].append((time.perf_counter() - began) / TIMED * 1e6)
    return {
        "equal": equal,
        "host us": {name: round(statistics.median(each), 1) for name, each in host.items()},
        "us": {name: round(statistics.median(each), 1) for name, each in whole.items()},
    }


def main(out: Path) -> None:
    """Measure all batches."""
    results = {}
    for count, length in BATCHES:
        results[f"{count}x{length}"] = measured(count, length)
        print(f"{count}x{length}", json.dumps(results[f"{count}x{length}"]), flush=True)
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
