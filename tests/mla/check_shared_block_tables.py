"""The steps of a TRT-LLM MLA draft read from one table what stock's steps read from theirs."""

from __future__ import annotations

from typing import Any

from check_draft_metadata import CASES, MODULES, draft, forward_batch, prepare
from liveness import live
from rooms import furnished, model_runner, server_args
from sglang.srt.layers.attention import trtllm_mla_backend
from toggling import compare

PATCH = "mla.shared-block-tables"


def run() -> None:
    """Compare, and count the table builds of one replay."""
    backend_class = trtllm_mla_backend.TRTLLMMLAMultiStepDraftBackend
    compare(PATCH, lambda case: draft(case, backend_class), CASES)
    assert builds() == 4
    with live(PATCH):
        assert builds() == 1


def builds() -> int:
    """How many steps of a five-step draft build a table before a replay."""
    arguments = server_args(speculative_num_steps=5, page_size=32)
    launched: list[Any] = []
    kernel = trtllm_mla_backend.create_flashmla_kv_indices_triton

    class Counted:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            launched.append(grid)
            return kernel[grid]

    with furnished(arguments, *MODULES):
        runner = model_runner(arguments, mla=True)
        backend = trtllm_mla_backend.TRTLLMMLAMultiStepDraftBackend(runner, 1, 5)
        backend.init_cuda_graph_state(4, 4)
        prepare(backend, forward_batch(runner, [1, 1], 0), capture=True)
        trtllm_mla_backend.create_flashmla_kv_indices_triton = Counted()
        try:
            prepare(backend, forward_batch(runner, [40, 7], 0))
        finally:
            trtllm_mla_backend.create_flashmla_kv_indices_triton = kernel
    return len(launched)
