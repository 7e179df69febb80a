"""The draft-extend's metadata is not built eagerly where the graph does all of it."""

from __future__ import annotations

from typing import Any

from sglang_perf_patches.verify.comparing import live
from sglang_perf_patches.verify.mla import flash
from sglang_perf_patches.verify.mla.draft_extend_metadata import PATCH, make, replaying, runners
from sglang_perf_patches.verify.mla.rig import furnished


def with_the_patch(expected: int, ran: bool, **options: bool) -> None:
    """So many eager builds of one replay."""
    with live(PATCH, ran=ran):
        assert builds(**options) == expected


def stocks() -> None:
    """Stock builds eagerly at each replay."""
    assert builds() == 1


def builds(*, other: bool = False, use_sliding_window_kv_pool: bool = False, **options: Any) -> int:
    """How many eager builds one replay makes."""
    given = flash.arguments(1)
    vars(given).update(options)
    kind: Any = flash.module.FlashAttentionBackend
    with furnished(given, flash.module.__name__, runners.__name__):
        runner = flash.runner_of(1)
        backend = (type("Other", (kind,), {}) if other else kind)(runner, topk=1)
        graphs = make(runner, backend)
        built = []
        stock = kind._apply_cuda_graph_metadata

        def counted(self: Any, *arguments: Any, **named: Any) -> None:
            built.append(self)
            stock(self, *arguments, **named)

        kind._apply_cuda_graph_metadata = counted
        try:
            backend.use_sliding_window_kv_pool = use_sliding_window_kv_pool
            if use_sliding_window_kv_pool:
                graphs.backend.replay = lambda *_: _Out()
                backend.init_forward_metadata_out_graph = lambda *_: built.append(backend)
            replaying(graphs, runner, [40, 7])()
        finally:
            kind._apply_cuda_graph_metadata = stock
        return len(built)


class _Out:
    """What a graph gives."""

    def __init__(self) -> None:
        rows = flash.torch.zeros(64, 2)
        self.next_token_logits = self.hidden_states = rows


CHECKS = {
    "stock's": stocks,
    "none with the patch": lambda: with_the_patch(0, True),
    "a sliding window is left to stock": lambda: with_the_patch(
        1, False, use_sliding_window_kv_pool=True
    ),
    "other backends are left to stock": lambda: with_the_patch(1, False, other=True),
}
