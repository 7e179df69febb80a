"""A graph of the draft-extend gives FlashAttention the same input as the eager one."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from random import Random
from typing import Any

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import same
from sglang_perf_patches.verify.mla import flash
from sglang_perf_patches.verify.mla.cases import some_lengths
from sglang_perf_patches.verify.mla.rig import furnished

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
    """Compare what eager and replayed draft-extends read."""
    import_module("sglang.srt.speculative.eagle_worker_v2")  # what the patch waits for
    eager, replayed = (partial(read, graph=graph) for graph in (False, True))
    return same(PATCH, replayed, [*EDGES, *inputs(drawn)], ran=None, stock=eager)


def read(case: Case, *, graph: bool) -> dict[str, Any]:
    """What the kernel of a draft-extend reads, of the rows that are requests.

    Without the table's width, where the graph's is wider.
    """
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
        fields = flash.read(metadata, page, count)
        for name, length in (("lengths", count), ("starts", count + 1), ("queries", count + 1)):
            fields[name] = fields[name][:length]
        if flash.HOST_LENGTHS:
            del fields["width"]
        return fields


CHECKS = {"eager and replayed": eager_and_replayed}
