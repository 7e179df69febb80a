"""Preparing the replay of a TRT-LLM MLA draft: stock and patched by turns, on one NVIDIA GPU.

``python draft_metadata.py [--device cpu --tokens 64]``, with sglang, its kernels and this project
on PYTHONPATH. No model runs: the release's own backend prepares what its kernel reads, and both
sides must leave the same page tables, bit by bit. It prints a line of JSON for each case:
microseconds of a call, back to back until the GPU is done, and quartiles of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

_CALLS = 30
_CASES = ((3, 1), (4, 1), (3, 16), (4, 16))
"""Steps of a draft, and requests."""


def main() -> None:
    """Measure each case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, help="of each request; 80,000 of one, 32,768 of 16")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    os.environ["SGLANG_PERF_PATCHES"] = "none"
    from tests.proof import stubs

    stubs.lend_beside_wheels() if given.device == "cuda" else stubs.lend()
    for steps, count in _CASES:
        tokens = given.tokens or (80_000 if count == 1 else 32_768)
        told = {"steps": steps, "requests": count, "tokens": tokens}
        print(json.dumps(told | _measured(steps, [tokens] * count, given)), flush=True)


def _measured(steps: int, lengths: list[int], given: argparse.Namespace) -> dict[str, Any]:
    from sglang_perf_patches.verify.comparing import live, require_same
    from sglang_perf_patches.verify.mla.rig import furnished, server_args
    from tests.proof.mla.draft_metadata import MODULE, PARENT, PATCH

    arguments = server_args(speculative_num_steps=steps, page_size=64)
    times: dict[bool, list[float]] = {False: [], True: []}
    with furnished(arguments, MODULE.__name__, PARENT.__name__):
        sides = {}
        for is_patched in times:
            with live(PATCH) if is_patched else nullcontext():
                sides[is_patched] = _prepared(MODULE, arguments, steps, lengths, given.device)
        require_same("the page tables", sides[False][1](), sides[True][1]())
        for number in range(given.rounds):
            for is_patched in list(times)[:: 1 if number % 2 else -1]:
                with live(PATCH, ran=None) if is_patched else nullcontext():
                    times[is_patched].append(_call_us(sides[is_patched][0], given.device))
    ratios = [ours / stock for stock, ours in zip(*times.values(), strict=True)]
    return {
        "stock, us": round(statistics.median(times[False]), 1),
        "patched, us": round(statistics.median(times[True]), 1),
        "ratio": [round(each, 3) for each in statistics.quantiles(ratios, n=4)],
    }


def _prepared(
    module: Any, arguments: Any, steps: int, lengths: list[int], device: str
) -> tuple[Callable[[], None], Callable[[], list[Any]]]:
    """A captured draft: what prepares its replay, and what gives the steps' page tables."""
    from sglang_perf_patches.verify.mla.cases import draft_batch, prepare
    from sglang_perf_patches.verify.mla.rig import model_runner

    count = len(lengths)
    sizes = {"context": lengths[0] + 1920, "requests": max(count, 2), "device": device}
    runner = model_runner(arguments, mla=True, **sizes)
    backend = module.TRTLLMMLAMultiStepDraftBackend(runner, 1, steps)
    backend.init_cuda_graph_state(count, count)
    prepare(backend, draft_batch(runner, [1] * count, capture=True), capture=True)
    batch = draft_batch(runner, lengths)
    prepare(backend, batch)
    held = [step.decode_cuda_graph_metadata[count] for step in backend.attn_backends]
    return (
        lambda: prepare(backend, batch),
        lambda: [each.block_kv_indices.clone() for each in held],
    )


def _call_us(act: Callable[[], None], device: str) -> float:
    import torch

    finish = torch.cuda.synchronize if device == "cuda" else lambda: None
    for _ in range(3):
        act()
    finish()
    began = time.perf_counter()
    for _ in range(_CALLS):
        act()
    finish()
    return 1e6 * (time.perf_counter() - began) / _CALLS


if __name__ == "__main__":
    main()
