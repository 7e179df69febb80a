"""Stock's own method captures a FlashAttention backend's draft-extend, exceptions aside."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

from sglang.srt.speculative import eagle_draft_extend_cuda_graph_runner as runners
from sglang.srt.speculative import eagle_worker_v2 as module
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from sglang_perf_patches.verify.comparing import live
from sglang_perf_patches.verify.mla import flash
from sglang_perf_patches.verify.mla.rig import furnished, server_args
from sglang_perf_patches.verify.stock import NoneByDefault

METHOD = next(
    name
    for name in ("_capture_cuda_graphs", "init_cuda_graphs")
    if hasattr(module.EagleDraftWorker, name)
)
RUNNER = runners.EAGLEDraftExtendCudaGraphRunner
IN_GRAPH = hasattr(flash.module, "draft_extend_set_metadata")
PATCH = "mla.draft-extend-graph"
EVENTS = ("war_fastpath_read_done_event", "shared_read_done_event")
PUBLISHES_EARLY = not hasattr(runners, "SharedReadEnds")
"""Whether the runner says before the graph's own reads that all are done, on any backend."""

NAME = (
    "TritonAttnBackend" if hasattr(module, "TritonAttnBackend") else "TritonMultiStepDraftBackend"
)
LISTED = getattr(module, NAME)


class Worker(SimpleNamespace):
    """Attributes alone; it can be referenced weakly, as stock's worker can."""

    __hash__ = object.__hash__


def stocks_own() -> None:
    """Stock captures none by itself."""
    assert captured() is None, "stock does it by itself here"


def a_capture() -> None:
    """The patch has it captured, with one table; off again, stock captures none."""
    with live(PATCH):
        tables = captured()
        assert tables is not None
        assert len({table.data_ptr() for table in tables}) == 1, "one table is enough"
        assert getattr(module, NAME) is LISTED
    assert captured() is None


def left_to_stock(**options: Any) -> None:
    """With these options nothing is captured, and the list is stock's again."""
    with live(PATCH, ran=False):
        assert captured(**options) is None
        assert getattr(module, NAME) is LISTED


EXCEPTIONS: dict[str, dict[str, Any]] = {
    "switched off": {"off": True},
    "a capture that fails": {"failing": True},
    "a sliding window": {"use_sliding_window_kv_pool": True},
    "an encoder-decoder": {"is_encoder_decoder": True},
    "FlashAttention 4": {"fa_impl_ver": 4},
    "several branches": {"topk": 2},
}


def captured(*, off: bool = False, failing: bool = False, **more: Any) -> Any:
    """The page tables of a backend whose draft-extend was captured, else None."""
    graphs = NoneByDefault(decode=NoneByDefault(backend="full"))
    given = server_args(disable_cuda_graph=False, model_impl="auto", cuda_graph_config=graphs)
    captures: list[Any] = []

    class Recorder:
        """A stand-in for a runner that captures, which needs a GPU."""

        def __init__(self, worker: Any) -> None:
            backend = worker.draft_extend_attn_backend
            backend.init_cuda_graph_state(4, 16)
            if failing:
                raise MemoryError
            captures.append(backend)

    with ExitStack() as stack:
        names = (flash.module.__name__, module.__name__, runners.__name__, "sglang.srt.utils")
        stack.enter_context(furnished(given, *names))
        for name, value in _lent(given, Recorder, NoneByDefault()).items():
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, value))
        if off:
            stack.enter_context(
                mock.patch.dict(os.environ, {"SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH": "1"})
            )
            if not _knows_switch():
                return None
        runner = flash.runner_of(1)
        backend = flash.make(runner)
        for name, value in more.items():
            setattr(backend, name, value)
        worker = Worker(
            server_args=given,
            draft_runner=runner,
            target_worker=NoneByDefault(device="cuda"),
            draft_attn_backend=_drafts(),
            draft_extend_attn_backend=backend,
            speculative_num_steps=3,
            speculative_num_draft_tokens=4,
            speculative_algorithm=SpeculativeAlgorithm.EAGLE,
            topk=1,
            device="cuda",
            gpu_id=0,
            _specialized_graph_memory_usage={},
            _specialized_graph_time_usage={},
        )
        try:
            getattr(module.EagleDraftWorker, METHOD)(worker)
        except MemoryError:
            return None
        if not captures:
            assert worker.cuda_graph_runner_for_draft_extend is None
            return None
        assert "init_cuda_graph_state" not in vars(captures[0])
        return [
            captures[0].draft_extend_metadata["page_table"],
            captures[0].target_verify_metadata["page_table"],
            captures[0].decode_cuda_graph_metadata["page_table"],
            captures[0].decode_cuda_graph_metadata["page_table_draft_decode"],
        ]


def _drafts() -> Any:
    """By what 0.5.9 goes."""
    kind = flash.module.FlashAttentionMultiStepBackend
    return kind.__new__(kind)


def _knows_switch() -> bool:
    return "SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH" in getattr(
        module.EagleDraftWorker, METHOD
    ).__code__.co_names or hasattr(
        getattr(module, "envs", None), "SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH"
    )


def _lent(given: NoneByDefault, recorder: Any, quiet: Any) -> dict[str, Any]:
    """What the worker's module asks of a machine with a GPU."""
    return {
        "_is_cuda": True,
        "_is_cpu": False,
        "_is_hip": False,
        "_is_npu": False,
        "_is_xpu": False,
        "_is_musa": False,
        "EAGLEDraftCudaGraphRunner": lambda worker: quiet,
        "EAGLEDraftExtendCudaGraphRunner": recorder,
        "get_available_gpu_memory": lambda *_: 1.0,
        "get_batch_sizes_to_capture": lambda *_: ([1, 2, 4], None),
        "check_cuda_graph_backend": lambda *_: False,
        "log_info_on_rank0": lambda *_: None,
    }


def with_host_lengths() -> None:
    """A batch whose lengths the host has runs eagerly, with a table that is as narrow."""
    runner = RUNNER.__new__(RUNNER)
    runner.draft_extend_attn_backend = flash.module.FlashAttentionBackend.__new__(
        flash.module.FlashAttentionBackend
    )
    runner.captured_req_width, runner.max_bs = 4, 8
    runner.require_mlp_tp_gather = runner.disable_padding = runner.require_mlp_sync = False
    batch = SimpleNamespace(
        spec_info=SimpleNamespace(num_tokens_per_req=4),
        seq_lens=SimpleNamespace(numel=lambda: 3),
        seq_lens_cpu=None,
    )
    assert runner.can_run_graph(batch)
    with live(PATCH, ran=False):
        assert runner.can_run_graph(batch)
        batch.seq_lens_cpu = object()
        assert not runner.can_run_graph(batch)
        runner.draft_extend_attn_backend = object()
        assert runner.can_run_graph(batch), "other backends are stock's"


def fences() -> None:
    """Nothing says before the graph, which reads the request pool, that all reads are done."""
    with live(PATCH, ran=None):
        assert read_done_before_replay() is None


def read_done_before_replay() -> Any:
    """What the scheduler would wait for after a replay; None for the whole forward."""
    draft_extend_metadata: Any = import_module(
        "sglang_perf_patches.verify.mla.draft_extend_metadata"
    )
    with furnished(flash.arguments(1), flash.module.__name__, runners.__name__):
        runner = flash.runner_of(1)
        graphs = draft_extend_metadata.make(runner, flash.make(runner))
        draft_extend_metadata.replaying(graphs, runner, [40, 7])()
        return next((vars(runner)[name] for name in EVENTS if name in vars(runner)), None)


def stocks_fence() -> None:
    """Stock says that all reads are done before the graph's own."""
    assert read_done_before_replay() is not None, "stock's fence is enough"


CHECKS = {
    "stock's own": stocks_own,
    "a capture": a_capture,
    **{name: partial(left_to_stock, **options) for name, options in EXCEPTIONS.items()},
}
if IN_GRAPH:
    CHECKS |= {"lengths on the host": with_host_lengths, "fences": fences}
    if PUBLISHES_EARLY:
        CHECKS["stock's fence"] = stocks_fence
