"""A graph of the draft-extend gives FlashAttention the same input as the eager one."""

from __future__ import annotations

from importlib import import_module
from random import Random
from typing import Any

from ....proof import Different, Inputs
from ....proof.comparing import differs, live
from ....proof.mla import flash
from ....proof.mla.batches import some_lengths
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


def compare(inputs: Inputs) -> int:
    """Compare what eager and replayed draft-extends read.

    From 0.5.16 on the table's width too. Before, the graph's is wider.
    """
    import_module("sglang.srt.speculative.eagle_worker_v2")  # what the patch waits for
    cases = [*EDGES, *inputs(drawn)]
    eager = [read(case, graph=False) for case in cases]
    with live(PATCH, ran=None):
        graph = [read(case, graph=True) for case in cases]
    for case, one, other in zip(cases, eager, graph, strict=True):
        if flash.HOST_LENGTHS:
            del one["width"], other["width"]
        difference = differs(one, other)
        if difference:
            raise Different(f"{PATCH}, {case!r}: {difference}")
    return len(cases)


def read(case: Case, *, graph: bool) -> dict[str, Any]:
    """What the kernel of a draft-extend reads, of the rows that are requests."""
    page, count = case["page"], len(case["lengths"])
    with furnished(flash.arguments(page), flash.module.__name__):
        runner = flash.runner_of(page, mla=case["mla"])
        backend = flash.make(runner)
        if graph:
            backend.init_cuda_graph_state(CAPTURED, CAPTURED * flash.DRAFT)
            made = flash.batch(runner, flash.EXTEND, case["lengths"], case["padding"])
            metadata = flash.replayed(backend, runner, made)
        else:
            backend.init_forward_metadata(flash.batch(runner, flash.EXTEND, case["lengths"]))
            metadata = backend.forward_metadata
        found = flash.read(metadata, page, count)
        found["lengths"] = found["lengths"][:count]
        found["starts"] = found["starts"][: count + 1]
        found["queries"] = found["queries"][: count + 1]
        return found
