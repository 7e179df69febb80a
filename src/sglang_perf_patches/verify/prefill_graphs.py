"""Breakable prefill graphs, captured and replayed by the release's own runner and backend.

Left out is what comes before the layers: the runner's buffers, and the model around them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from . import stock

EXECUTOR = "sglang.srt.model_executor"
_UNSET = (
    *("quant_config", "moe_layers", "moe_fusions", "dsa_indexers", "dllm_attention"),
    *("mha_companion_layers", "enable_cp_bcg_capture", "attn_metadata_buffers"),
    *("_is_full_backend", "_capture_chunked_prefix", "require_mlp_tp_gather"),
)
"""What a runner is asked for and has not here, unless a rig sets it."""


def runner_of(model_runner: Any, **attributes: Any) -> Any:
    """A ``PrefillCudaGraphRunner`` of one rank, and its backend."""
    module: Any = import_module(f"{EXECUTOR}.runner.prefill_cuda_graph_runner")
    runner = object.__new__(module.PrefillCudaGraphRunner)
    idle = SimpleNamespace(synchronize=lambda: None, graph_pool_handle=object)
    runner.device_module = torch.cuda if stock.device() == "cuda" else idle
    runner.model_runner = model_runner
    for name, value in {**dict.fromkeys(_UNSET), **attributes}.items():
        setattr(runner, name, value)
    module = import_module(f"{EXECUTOR}.runner_backend.breakable_cuda_graph_backend")
    parallel = SimpleNamespace(tp_group=SimpleNamespace(barrier=lambda: None, ranks=[0]))
    with mock.patch.object(module, "get_parallel", return_value=parallel):
        runner.backend = stock.called(module.BreakableCudaGraphBackend, cuda_graph_runner=runner)
    runner.backend.deduped_cuda_graph = None
    return runner


@contextmanager
def capturing(backend: Any) -> Iterator[None]:
    """Within, a backend captures on the GPU."""
    torch.cuda.synchronize()  # what it warms up with must be done before
    stream = torch.cuda.Stream()  # a capture can't be on the default stream
    with torch.cuda.stream(stream), backend.capture_session(stream):
        yield
    torch.cuda.synchronize()


def capture(runner: Any, bucket: int, within: AbstractContextManager[Any]) -> None:
    """Capture a bucket."""
    # The release captures all graphs of a process into one pool and keeps its handle. Once the
    # graphs of the runner before are freed, PyTorch refuses that handle: "use_count > 0". The
    # release's `drop_elastic_cuda_graph_state` forgets the handle for the same reason.
    import_module(f"{EXECUTOR}.runner_utils.pool").set_global_graph_memory_pool(None)
    with within:
        runner.capture_one_shape(bucket)


def replay(runner: Any, bucket: int, batch: Any, static: Any) -> tuple[torch.Tensor, bool]:
    """What a bucket puts out, of shape ``[bucket, …]``, and whether its graph was ``is_ours``.

    `static` is the batch with the tensors of the capture.
    """
    key = import_module(f"{EXECUTOR}.runner.shape_key").ShapeKey(size=bucket)
    with runner.backend.replay_session():
        runner._prepare_forward_metadata_for_replay(batch, static, key)
        is_ours: bool = getattr(runner.backend._graphs[key], "is_ours", False)
        counts = {"num_tokens": bucket, "raw_num_tokens": int(batch.extend_num_tokens)}
        with runner._prefill_forward_context(static, **counts):
            return runner.backend.replay(key, static), is_ours
