"""At the context limit stock's tables end too early; in some releases the server ends with them."""

from unittest import mock

from sglang_perf_patches.live import published
from sglang_perf_patches.live.published import Published
from sglang_perf_patches.verify import Different
from sglang_perf_patches.verify.comparing import live
from sglang_perf_patches.verify.mla import rig
from sglang_perf_patches.verify.mla.page_table_bound import (
    CONTEXT,
    EXTRA,
    HOST_LENGTHS,
    MODULE,
    PATCH,
    at_the_limit,
    prepared,
    served,
)
from sglang_perf_patches.verify.stock import EXTRA_ARGUMENTS

EAGER = not HOST_LENGTHS
"""Whether eager tables are as wide as the context; otherwise they are as wide as what is read."""


def stocks_graph(mode: str) -> None:
    assert fails(mode, graph=True), f"stock's {mode} graph has what it reads"


def stocks_eager_table() -> None:
    """An eager one, where it is as wide as the context."""
    assert fails("extend", graph=False) == EAGER


def graph_of_the_patch() -> None:
    with live(PATCH):
        assert not fails("extend", graph=True)
        memory()


def several_branches() -> None:
    """Drafts with topk > 1 are left to stock."""
    with live(PATCH, ran=False), served(1) as runner:
        backend = MODULE.FlashAttentionBackend(runner, topk=1)
        backend.topk = 2
        backend.init_cuda_graph_state(4, 16)
        assert backend.draft_extend_metadata["page_table"].is_contiguous()


def of_a_hybrid_model() -> None:
    """The attention layers of a model with states, which a server tracks in extra buffers."""
    names = ("mamba_scheduler_strategy", "mamba_radix_cache_strategy")
    tracked = dict.fromkeys(names, "extra_buffer")
    server = Published(rig.server_args(**tracked))
    with (
        mock.patch.dict(EXTRA_ARGUMENTS, tracked),
        mock.patch.object(published, "published", return_value=server),
        live(PATCH),
    ):
        assert not fails("extend", graph=True)
        assert not fails("verify", graph=False)


def fails(mode: str, *, graph: bool) -> bool:
    """Whether a batch at the limit reads what is not its own, or can't be prepared."""
    try:
        at_the_limit(mode, graph=graph, page=1)
    except (Different, AssertionError):
        return True
    return False


def memory() -> None:
    """The graphs' tables have stock's shape, and rows that continue in memory."""
    case = {"mode": "verify", "lengths": [40, 7], "graph": True, "padding": 0}
    with served(1) as runner:
        (metadata,) = prepared(runner, case)
        table = metadata.page_table
        assert table.shape == (2, CONTEXT)
        assert CONTEXT + EXTRA <= table.stride(0) <= CONTEXT + EXTRA + 16


CHECKS = {
    **{
        f"stock's {mode} graph": lambda mode=mode: stocks_graph(mode)
        for mode in ("extend", "verify", "draft")
    },
    "stock's eager table": stocks_eager_table,
    "the patch's graph": graph_of_the_patch,
    "several branches": several_branches,
    "a hybrid model": of_a_hybrid_model,
}
