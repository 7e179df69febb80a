"""At the context limit stock's tables end too early; in some releases the server ends with them."""

from __future__ import annotations

from sglang_perf_patches.proof import Different
from sglang_perf_patches.proof.comparing import live
from sglang_perf_patches.proof.mla import flash
from sglang_perf_patches.proof.mla.rig import furnished
from sglang_perf_patches.sets.mla.page_table_bound.proof import PATCH, at_the_limit, prepared

EAGER = not flash.HOST_LENGTHS
"""Whether eager tables are as wide as the context; otherwise they are as wide as what is read."""


def run() -> None:
    """See stock read beyond its table, and see the exceptions left to it."""
    for mode in ("extend", "verify", "draft"):
        assert fails(mode, graph=True), f"stock's {mode} graph has what it reads"
    assert fails("extend", graph=False) == EAGER
    with live(PATCH):
        assert not fails("extend", graph=True)
        memory()
    with live(PATCH, ran=False), furnished(flash.arguments(1), flash.module.__name__):
        backend = flash.make(flash.runner_of(1))
        backend.topk = 2
        backend.init_cuda_graph_state(4, 16)
        table = backend.draft_extend_metadata["page_table"]
        assert table.is_contiguous(), "drafts with topk > 1 are left to stock"


def fails(mode: str, *, graph: bool) -> bool:
    """Whether a batch at the limit reads what is not its own, or can't be prepared."""
    try:
        at_the_limit(mode, graph=graph, page=1)
    except (Different, AssertionError):
        return True
    return False


def memory() -> None:
    """The graphs' tables have stock's shape, and rows that continue in memory."""
    with furnished(flash.arguments(1), flash.module.__name__):
        runner = flash.runner_of(1)
        case = {"graph": True, "padding": 0}
        (metadata,) = prepared(runner, "verify", [40, 7], case)
        table = metadata.page_table
        assert table.shape == (2, flash.CONTEXT)
        assert flash.CONTEXT + flash.EXTRA <= table.stride(0) <= flash.CONTEXT + flash.EXTRA + 16
