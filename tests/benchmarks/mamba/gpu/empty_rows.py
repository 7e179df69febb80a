"""Whether FlashInfer's GDN prefill gives the same bits with sequences of length zero behind others.

    python tests/benchmarks/mamba/gpu/empty_rows.py OUT.json

One Hopper GPU, FlashInfer on PYTHONPATH. A graph of a few requests would call the kernel for more
sequences and more rows than the batch has. For each case the kernel is called for the batch itself,
again, so, and from a CUDA graph that was captured with another batch. OUT.json has for each case
which results are equal, bit by bit, and microseconds of the GPU and of the host's call.
"""

from __future__ import annotations

import json
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from flashinfer.gdn_prefill import chunk_gated_delta_rule

EVERY = 64
WIDTH = 128
SETTINGS = (
    # heads of keys and values: Qwen3.5-35B-A3B's on one GPU, on two and on four
    *((16, 32, lens, 8) for lens in ([300] * 3, [65, 519, 1, 130], [300] * 8, [90] * 5)),
    (16, 32, [700, 90, 17, 64, 300, 128, 2], 8),
    (16, 32, [300] * 3, 4),
    (16, 32, [300] * 3, 16),
    (16, 32, [300, 200], 2),
    (16, 32, [300, 200], 4),
    (8, 16, [300] * 3, 8),
    (8, 16, [300] * 5, 8),
    (8, 16, [90, 130, 300, 65], 4),
    (4, 8, [300] * 3, 8),
    (4, 8, [300] * 3, 3),
    (4, 8, [90, 130, 300, 65], 8),
)
Named = dict[str, torch.Tensor]


def drawn(keys: int, values: int, tokens: int, requests: int) -> Named:
    """Random input of the kernel, as a layer has it."""
    made: Named = {}
    for name, heads in (("q", keys), ("k", keys), ("v", values)):
        made[name] = torch.randn(tokens, heads, WIDTH, device="cuda")
        if name != "v":
            made[name] = torch.nn.functional.normalize(made[name], dim=-1)
        made[name] = made[name].bfloat16()
    made["g"] = torch.rand(tokens, values, device="cuda") * 0.2 + 0.8
    made["beta"] = torch.rand(tokens, values, device="cuda")
    made["initial_state"] = torch.randn(requests, values, WIDTH, WIDTH, device="cuda") * 0.1
    return made


def padded(batch: Named, tokens: int, requests: int) -> Named:
    """The same with rows of zeros, and with states that no sequence has."""
    more = {}
    for name, value in batch.items():
        count = (requests if name == "initial_state" else tokens) - value.shape[0]
        more[name] = torch.cat([value, value.new_zeros(count, *value.shape[1:])])
    return more


def starts(lens: Sequence[int], requests: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``cu_seqlens`` and ``checkpoint_cu_starts`` with empty sequences behind the others."""
    each = torch.tensor([*lens, *[0] * (requests - len(lens))])
    both = (torch.cat([each.new_zeros(1), one.cumsum(0)]) for one in (each, each // EVERY))
    first, second = (one.cuda() for one in both)
    return first, second


class Call:
    """A call of the kernel with memory of its own."""

    def __init__(self, batch: Named, at: tuple[torch.Tensor, torch.Tensor], kept: int) -> None:
        self.starts, self.first = at
        self.batch = batch
        self.output = torch.zeros_like(batch["v"])
        self.state = torch.zeros_like(batch["initial_state"])
        self.kept = torch.zeros(kept, *self.state.shape[1:], device="cuda") if kept else None

    def run(self) -> None:
        """As stock's FlashInferGDNKernel calls it."""
        chunk_gated_delta_rule(
            **self.batch,
            scale=None,
            output_final_state=True,
            cu_seqlens=self.starts,
            use_qk_l2norm_in_kernel=False,
            output=self.output,
            output_state=self.state,
            state_checkpoints=self.kept,
            checkpoint_cu_starts=self.first if self.kept is not None else None,
            checkpoint_every_n_tokens=EVERY if self.kept is not None else 0,
        )

    def equal(self, other: Call, tokens: int, requests: int, kept: int) -> dict[str, bool]:
        """Whether the first of this one's results are all of the other's."""
        torch.cuda.synchronize()
        found = {
            "output": torch.equal(self.output[:tokens], other.output[:tokens]),
            "states": torch.equal(self.state[:requests], other.state[:requests]),
        }
        if self.kept is not None and other.kept is not None:
            found["checkpoints"] = torch.equal(self.kept[:kept], other.kept[:kept])
        return found


def microseconds(run: Callable[[], None], times: int = 50) -> tuple[float, float]:
    """Of the GPU, if nothing else holds it up, and of the host, for each call."""
    for _ in range(5):
        run()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        run()
    host = time.perf_counter() - began
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            run()
    graph.replay()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    graph.replay()
    events[1].record()
    torch.cuda.synchronize()
    return round(events[0].elapsed_time(events[1]) * 1e3 / 20, 1), round(host / times * 1e6, 1)


def case(keys: int, values: int, lens: list[int], rows: int, keeps: bool) -> dict[str, Any]:
    """One case: what is equal, and how long it takes."""
    tokens, count = sum(lens), len(lens)
    bucket = -(-(tokens + 1) // 64) * 64
    kept = sum(one // EVERY for one in lens) if keeps else 0
    most = bucket // EVERY if keeps else 0
    batch = drawn(keys, values, tokens, count)
    exact, again = (Call(batch, starts(lens, count), kept) for _ in range(2))
    exact.run()
    again.run()
    results: dict[str, Any] = {"again": exact.equal(again, tokens, count, kept)}
    wide = Call(padded(batch, bucket, rows), starts(lens, rows), most)
    wide.run()
    results["more rows"] = wide.equal(exact, tokens, count, kept)
    left = wide.batch["initial_state"][count:]
    results["states of empty rows are kept"] = torch.equal(wide.state[count:], left)
    results["rows past the end are zero"] = not wide.output[tokens:].any().item()
    results["GPU, host us"] = {
        "batch": microseconds(exact.run),
        "more rows": microseconds(wide.run),
    }
    # captured with one long request, replayed with the batch
    graph = torch.cuda.CUDAGraph()
    held = Call(padded(batch, bucket, rows), starts([bucket], rows), most)
    held.run()
    with torch.cuda.graph(graph):
        held.run()
    for mine, other in zip((held.starts, held.first), starts(lens, rows), strict=True):
        mine.copy_(other)
    for result in (held.output, held.state, held.kept):
        if result is not None:
            result.zero_()
    graph.replay()
    results["replayed"] = held.equal(exact, tokens, count, kept)
    return results


def main(out: Path) -> None:
    """All cases; OUT is rewritten after each."""
    torch.manual_seed(1)
    results: dict[str, Any] = {"SMs": torch.cuda.get_device_properties(0).multi_processor_count}
    draw = random.Random(1)
    drawn_lens = [[draw.choice((1, 30, 64, 65, 130, 333)) for _ in range(n)] for n in range(3, 9)]
    # What splits no sequence first: a kernel that fails may take all later ones with it.
    wanted = [*((16, 32, lens, 8) for lens in drawn_lens), *SETTINGS]
    for keys, values, lens, rows in wanted:
        for keeps in (True, False):
            name = f"{values} heads, {lens} in {rows} rows{', checkpoints' if keeps else ''}"
            try:
                results[name] = case(keys, values, lens, rows, keeps)
            except Exception:
                results[name] = traceback.format_exc()[-600:]
            print(name, json.dumps(results[name]), flush=True)
            out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
