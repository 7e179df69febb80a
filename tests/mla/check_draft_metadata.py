"""The TRT-LLM MLA draft launches no kernel whose output nothing reads, and builds one table."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from sglang_perf_patches.verify.comparing import live
from sglang_perf_patches.verify.mla.cases import draft_batch, prepare
from sglang_perf_patches.verify.mla.rig import furnished, model_runner, server_args
from tests.proof.mla.draft_metadata import MODULE, PARENT, PATCH

INDEXES = "init_forward_metadata" not in vars(MODULE.TRTLLMMLAMultiStepDraftBackend)
"""Whether stock does FlashInfer's index work, up to 0.5.12.post1."""


def stocks_work() -> None:
    """Stock launches the index kernel once, and builds a table for each of four steps."""
    assert launches() == INDEXES
    assert builds() == 4


def work_of_the_patch() -> None:
    with live(PATCH):
        assert launches() == 0
        assert builds() == 1


def captured_before() -> None:
    """Graphs that were captured before the patch was live have tables of their own."""
    assert builds(live_after_capture=True) == 4


def launches() -> int:
    """How often preparing one eager draft launches the index kernel."""
    arguments = server_args(page_size=32)
    runner = model_runner(arguments, mla=True)
    with furnished(arguments, MODULE.__name__, PARENT.__name__):
        backend = MODULE.TRTLLMMLAMultiStepDraftBackend(runner, 1, 3)
        counted = Counted(backend.generate_draft_decode_kv_indices)
        backend.generate_draft_decode_kv_indices = counted
        backend.init_forward_metadata(draft_batch(runner, [40, 7]))
        return len(counted.grids)


def builds(*, live_after_capture: bool = False) -> int:
    """How many steps of a five-step draft build a table before a replay."""
    arguments = server_args(speculative_num_steps=5, page_size=32)
    kernel = MODULE.create_flashmla_kv_indices_triton
    counted = Counted(kernel)
    with furnished(arguments, MODULE.__name__, PARENT.__name__):
        runner = model_runner(arguments, mla=True)
        backend = MODULE.TRTLLMMLAMultiStepDraftBackend(runner, 1, 5)
        backend.init_cuda_graph_state(4, 4)
        prepare(backend, draft_batch(runner, [1, 1]), capture=True)
        MODULE.create_flashmla_kv_indices_triton = counted
        try:
            with live(PATCH, ran=INDEXES) if live_after_capture else nullcontext():
                prepare(backend, draft_batch(runner, [40, 7]))
        finally:
            MODULE.create_flashmla_kv_indices_triton = kernel
    return len(counted.grids)


class Counted:
    """A Triton kernel that counts its launches."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        self.grids.append(grid)
        launch: Callable[..., Any] = self.kernel[grid]
        return launch


CHECKS = {
    "stock's work": stocks_work,
    "work of the patch": work_of_the_patch,
    "captured before": captured_before,
}
