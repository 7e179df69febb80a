"""A graph of the draft-extend gives FlashAttention the same input as the eager one."""

from __future__ import annotations

from importlib import import_module
from random import Random
from typing import Any

from ....proof import Inputs
from ....proof.comparing import live, require_same
from ....proof.mla import flash
from ....proof.mla.cases import some_lengths
from ....proof.mla.rig import furnished

PATCH = "mla.draft-extend-graph"
CAPTURED = 6

Case = dict[str, Any]

EDGES: tuple[Case, ...] = (
    {"lengths": [40, 7], "page": 1, "padding": 0, "mla": True},
    {"lengths": [40, 7, 1], "page": 16, "padding": 2, "mla": False},
    {"lengths": [200], "page": 4, "padding": 0, "mla": False},
)


def drawn(random: Random) -> Case:
    """Batches, padded to a captured size or not."""
    return {
        "lengths": some_lengths(random, CAPTURED - 2),
        "page": random.choice([1, 4, 16]),
        "padding": random.randint(0, 2),
        "mla": random.random() < 0.5,
    }


def eager_and_replayed(inputs: Inputs) -> int:
    """Compare what eager and replayed draft-extends read.

    From 0.5.16 on the table's width too. Before, the graph's is wider.
    """
    import_module("sglang.srt.speculative.eagle_worker_v2")  # what the patch waits for
    batches = [*EDGES, *inputs(drawn)]
    eager = [read(batch, graph=False) for batch in batches]
    with live(PATCH, ran=None):
        replayed = [read(batch, graph=True) for batch in batches]
    for batch, expected, actual in zip(batches, eager, replayed, strict=True):
        if flash.HOST_LENGTHS:
            del expected["width"], actual["width"]
        require_same(f"{PATCH}, {batch!r}", expected, actual)
    return len(batches)


def read(case: Case, *, graph: bool) -> dict[str, Any]:
    """What the kernel of a draft-extend reads, of the rows that are requests."""
    page, count = case["page"], len(case["lengths"])
    with furnished(flash.arguments(page), flash.module.__name__):
        runner = flash.runner_of(page, mla=case["mla"])
        backend = flash.make(runner)
        if graph:
            backend.init_cuda_graph_state(CAPTURED, CAPTURED * flash.DRAFT)
            padded = flash.batch(runner, flash.EXTEND, case["lengths"], case["padding"])
            metadata = flash.replayed(backend, runner, padded)
        else:
            backend.init_forward_metadata(flash.batch(runner, flash.EXTEND, case["lengths"]))
            metadata = backend.forward_metadata
        read_by_kernel = flash.read(metadata, page, count)
        read_by_kernel["lengths"] = read_by_kernel["lengths"][:count]
        read_by_kernel["starts"] = read_by_kernel["starts"][: count + 1]
        read_by_kernel["queries"] = read_by_kernel["queries"][: count + 1]
        return read_by_kernel


CHECKS = {"eager and replayed": eager_and_replayed}
