"""The steps of a FlashAttention draft share one page table, built once, where that pays."""

from __future__ import annotations

from typing import Any

from sglang_perf_patches.proof.comparing import live
from sglang_perf_patches.proof.mla.batches import draft_batch, prepare
from sglang_perf_patches.proof.mla.rig import furnished
from sglang_perf_patches.proof.mla.shared_draft_tables import PATCH, arguments, make, module


def run() -> None:
    """Count launches and tables."""
    assert builds() == 4
    with live(PATCH):
        assert builds() == 1
        assert tables() == 1
    assert tables() == 4
    with live(PATCH, ran=False):
        assert tables(topk=2) == 4
        assert tables(steps=3) == 2, "two tables are as fast as one"
    with live(PATCH, ran=False):
        assert tables(steps=4) == 1


def builds() -> int:
    """How many launches of the table's kernel one replay of a five-step draft takes."""
    case = {"steps": 5, "topk": 1, "page": 1}
    stock, launched = module.normal_decode_set_metadata, []

    def counted(*given: Any, **named: Any) -> None:
        launched.append(given)
        stock(*given, **named)

    with furnished(arguments(case), module.__name__):
        backend, runner = make(case)
        prepare(backend, draft_batch(runner, [1, 1], steps=5), capture=True)
        module.normal_decode_set_metadata = counted
        try:
            prepare(backend, draft_batch(runner, [40, 7], steps=5))
        finally:
            module.normal_decode_set_metadata = stock
    return len(launched)


def tables(topk: int = 1, steps: int = 5) -> int:
    """How many page tables a draft holds."""
    case = {"steps": steps, "topk": topk, "page": 1}
    with furnished(arguments(case), module.__name__):
        backend, _ = make(case)
        states = [step.decode_cuda_graph_metadata for step in backend.attn_backends]
        return len({state["page_table_draft_decode"].data_ptr() for state in states})
