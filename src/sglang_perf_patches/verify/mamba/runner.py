"""The release's own runner and backend of breakable prefill graphs, for the layers of a rig.

Capture, breaks and replay are the release's. Left out is what comes before the layers: its buffers,
and the model around them.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from .. import stock
from ..stock import NoneByDefault, called
from .harness import Play
from .rig import Rig

_EXECUTOR = "sglang.srt.model_executor"


class Runner:
    """A runner with one bucket, or more of which only the last is captured.

    Attributes:
        inputs: what the layers read, of as many tokens as the bucket has.
        stocks: the release's runner.
    """

    def __init__(self, play: Play, capture: Any, inputs: Any, smaller: Sequence[int] = ()) -> None:
        """Capture.

        Args:
            play: whose rig's layers.
            capture: the ForwardBatch of the capture; its tokens are the bucket.
            inputs: of the layers, see the attribute.
            smaller: further buckets of the server.
        """
        self.play = play
        rig = self.rig = play.rig
        self.bucket = int(capture.extend_num_tokens)
        self.inputs = inputs
        self._module = importlib.import_module(f"{_EXECUTOR}.runner.prefill_cuda_graph_runner")
        self._key = importlib.import_module(f"{_EXECUTOR}.runner.shape_key").ShapeKey(
            size=self.bucket
        )
        stocks = self.stocks = object.__new__(self._module.PrefillCudaGraphRunner)
        hybrid = _hybrid(rig)
        stocks.model_runner = NoneByDefault(
            attn_backend=hybrid,
            model=NoneByDefault(),
            req_to_token_pool=rig.pool,
            device=rig.device,
        )
        stocks.use_captured_attn_metadata = (
            hybrid.use_captured_forward_metadata_for_breakable_cuda_graph
        )
        stocks.attn_metadata_buffers = {} if stocks.use_captured_attn_metadata else None
        stocks._captured_attn_metadata_max_bs = hybrid.prefill_cuda_graph_max_batch_size
        stocks.capture_num_tokens = [*smaller, self.bucket]
        stocks.attention_layers = rig.layers
        for name in (
            *("quant_config", "moe_layers", "moe_fusions", "dsa_indexers", "dllm_attention"),
            *("mha_companion_layers", "enable_cp_bcg_capture"),
            *("_is_full_backend", "_capture_chunked_prefix", "require_mlp_tp_gather"),
        ):
            setattr(stocks, name, None)
        stocks.backend = _graph_backend(stocks)
        stocks.capture_prepare = lambda _: (_whole(capture), hybrid)
        stocks._run_forward = self._run
        self._captured(stocks)

    def replay(self, batch: Any) -> torch.Tensor:
        """What the layers put out, of shape ``[bucket, …]``, for a batch and `inputs`."""
        stocks = self.stocks
        batch = _whole(batch)
        static = copy.copy(batch)
        if static.forward_mode.name == "MIXED":
            static.forward_mode = type(static.forward_mode).EXTEND
        static.out_cache_loc = static.positions = batch.out_cache_loc.new_zeros(self.bucket)
        with self.play.graphs(), stocks.backend.replay_session():
            stocks._prepare_forward_metadata_for_replay(batch, static, self._key)
            tokens = int(batch.extend_num_tokens)
            with stocks._prefill_forward_context(
                static, num_tokens=self.bucket, raw_num_tokens=tokens
            ):
                output: torch.Tensor = stocks.backend.replay(self._key, static)
        return output

    def serves(self, requests: int) -> bool:
        """Whether the number of requests lets a batch be replayed at all."""
        most = self.stocks._captured_attn_metadata_max_bs
        return most is None or requests <= most

    def _captured(self, stocks: Any) -> None:
        # The release captures all graphs of a process into one pool and keeps its handle. Once the
        # graphs of the runner before are freed, PyTorch refuses that handle: "use_count > 0". The
        # release's `drop_elastic_cuda_graph_state` forgets the handle for the same reason.
        pools = importlib.import_module(f"{_EXECUTOR}.runner_utils.pool")
        pools.set_global_graph_memory_pool(None)
        with self.play.capturing(stocks.backend):
            stocks.capture_one_shape(self.bucket)

    def _run(self, batch: Any, _: int) -> torch.Tensor:
        with self.stocks._prefill_forward_context(batch):
            outputs = [
                layer.forward(batch, **of_layer)[0]
                for layer, of_layer in zip(self.rig.layers, self.inputs, strict=True)
            ]
        return torch.cat(outputs, dim=1)


def _whole(batch: Any) -> Any:
    """A batch that nothing padded."""
    batch.global_num_token_non_padded_cpu = int(batch.extend_num_tokens)
    return batch


def _hybrid(rig: Rig) -> Any:
    """The release's hybrid backend, around a rig's and a full-attention one without layers."""
    name = "sglang.srt.layers.attention"
    module = importlib.import_module(f"{name}.hybrid_linear_attn_backend")
    base = importlib.import_module(f"{name}.base_attn_backend").AttentionBackend

    class Full(base):  # type: ignore[misc, valid-type]
        token_to_kv_pool = kv_index_translator = None
        needs_cpu_seq_lens = False
        req_to_token_pool = rig.pool

        def init_forward_metadata(self, forward_batch: Any) -> None:
            pass

    with mock.patch.object(module, "check_cuda_graph_backend", return_value=True):
        return module.HybridLinearAttnBackend(Full(), rig.backend, [])


def _graph_backend(runner: Any) -> Any:
    """The release's."""
    module = importlib.import_module(f"{_EXECUTOR}.runner_backend.breakable_cuda_graph_backend")
    idle = SimpleNamespace(synchronize=lambda: None, graph_pool_handle=object)
    runner.device_module = torch.cuda if stock.device() == "cuda" else idle
    group = SimpleNamespace(barrier=lambda: None, ranks=[0])
    parallel = SimpleNamespace(tp_group=group)
    with mock.patch.object(module, "get_parallel", return_value=parallel):
        backend = called(module.BreakableCudaGraphBackend, cuda_graph_runner=runner)
    backend.deduped_cuda_graph = None
    return backend
