"""The FlashInfer draft is planned with stock's numbers, without a copy from the device."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from lent import Wrapper
from liveness import live
from rooms import CONTEXT, REQUESTS, Batch, furnished, model_runner, server_args
from sglang.srt.layers.attention import flashinfer_backend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.eagle_info import EagleDraftInput
from toggling import compare

PATCH = "mla.flashinfer-host-indptr"
CAPTURED = 6

for _name in (
    "BatchDecodeWithPagedKVCacheWrapper",
    "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper",
):
    setattr(flashinfer_backend, _name, Wrapper)
flashinfer_backend.fast_decode_plan = Wrapper.begin_forward
flashinfer_backend.envs.SGLANG_FLASHINFER_WORKSPACE_SIZE.set(0)
flashinfer_backend.should_use_tensor_core = lambda **_: False

CASES = st.fixed_dictionaries(
    {
        "steps": st.integers(2, 5),
        "topk": st.integers(1, 4),
        "page": st.sampled_from([1, 4]),
        "lengths": st.lists(st.integers(1, CONTEXT - 48), max_size=CAPTURED),
        "padding": st.integers(0, 2),
        "graph": st.booleans(),
        "idle": st.booleans(),
        "host": st.sampled_from([True, True, True, False]),
    }
)


def draft(case: dict[str, Any]) -> dict[str, Any]:
    """Prepare one draft; every plan of every step, and what the kernels read."""
    steps, topk = case["steps"], case["topk"]
    arguments = server_args(
        speculative_num_steps=steps, speculative_eagle_topk=topk, page_size=case["page"]
    )
    runner = model_runner(arguments)
    with furnished(arguments, flashinfer_backend.__name__):
        backend = flashinfer_backend.FlashInferMultiStepDraftBackend(runner, topk, steps)
        lengths = case["lengths"]
        if not case["graph"]:
            lengths = lengths or [1]  # stock prepares no eager idle batch
        padding = min(case["padding"], CAPTURED - len(lengths)) if case["graph"] else 0
        batch = forward_batch(runner, topk, lengths, padding)
        if case["idle"]:
            batch.forward_mode = ForwardMode.IDLE
        if not case["host"]:
            batch.seq_lens_cpu = None
        found: dict[str, Any] = {}
        if case["graph"] and batch.batch_size:
            # Older releases leave topk out of the size of their buffer.
            backend.init_cuda_graph_state(CAPTURED * topk, CAPTURED * topk)
            capture(backend, forward_batch(runner, topk, [1] * batch.batch_size, 0, capture=True))
            for wrapper in wrappers(backend):
                wrapper.plans.clear()
            backend.cuda_graph_kv_indices.fill_(-7)
            replay(backend, batch)
            found["indices"] = backend.cuda_graph_kv_indices
        elif batch.batch_size:
            backend.init_forward_metadata(batch)
        found["plans"] = [list(wrapper.plans) for wrapper in wrappers(backend)]
        found["kv_indptr"] = backend.kv_indptr
        assert type(backend.kv_indptr) is torch.Tensor
        assert type(batch.spec_info.kv_indptr) in (torch.Tensor, type(None))
        assert flashinfer_backend.global_override_indptr_cpu is None
        return found


def forward_batch(
    runner: Any, topk: int, lengths: list[int], padding: int, capture: bool = False
) -> Batch:
    """A draft batch, padded as the draft's graph runner pads it."""
    count = len(lengths)
    seq_lens = torch.tensor(lengths + [1] * padding, dtype=torch.int64)
    requests = torch.randperm(REQUESTS, generator=torch.Generator().manual_seed(count))[:count]
    starts = [0] * count if capture else lengths
    spec_info = EagleDraftInput(topk_p=torch.zeros(count, topk))
    spec_info.kv_indptr = spec_info.kv_indices = None
    return Batch(
        batch_size=count + padding,
        forward_mode=ForwardMode.DECODE,
        req_pool_indices=torch.cat([requests, requests.new_zeros(padding)]),
        req_to_token_pool=runner.req_to_token_pool,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens.clone(),
        seq_lens_sum=int(seq_lens.sum()),
        positions=torch.tensor(starts + [0] * padding).repeat_interleave(topk),
        spec_info=spec_info,
        encoder_lens=None,
        out_cache_loc=None,
        kv_loc_plan=None,
        global_num_tokens_cpu=None,
        _original_batch_size=None,
    )


def wrappers(backend: Any) -> list[Wrapper]:
    """Every wrapper that a step of the draft may plan."""
    found = []
    for step in backend.attn_backends:
        found += step.decode_wrappers
        for kept in step.decode_cuda_graph_metadata.values():
            found += kept if isinstance(kept, list) else kept.decode_wrappers
    return found


OLD = hasattr(
    flashinfer_backend.FlashInferMultiStepDraftBackend, "init_forward_metadata_replay_cuda_graph"
)


def capture(backend: Any, batch: Batch) -> None:
    """Prepare a graph for capture."""
    if OLD:
        backend.init_forward_metadata_capture_cuda_graph(batch)
    else:
        backend.init_forward_metadata_out_graph(batch, in_capture=True)


def replay(backend: Any, batch: Batch) -> None:
    """Prepare a graph for replay."""
    if OLD:
        backend.init_forward_metadata_replay_cuda_graph(batch, batch.batch_size)
    else:
        backend.init_forward_metadata_out_graph(batch)


def run() -> None:
    """Compare, and count the copies of kv_indptr to the host."""
    compare(PATCH, draft, CASES, examples=16)
    for graph in (True, False):
        assert copies(graph) == 1, (graph, copies(graph))
        with live(PATCH):
            assert copies(graph) == 0


def copies(graph: bool) -> int:
    """How often the preparation of one draft copies a tensor with the rows of all steps."""
    case = {
        "steps": 3,
        "topk": 2,
        "page": 1,
        "lengths": [40, 7],
        "padding": 1,
        "graph": graph,
        "idle": False,
        "host": True,
    }
    stock, counted, inside = torch.Tensor.cpu, [], [False]

    def cpu(self: torch.Tensor, *more: Any) -> torch.Tensor:
        if not inside[0] and self.ndim == 2 and self.shape[0] == case["steps"]:
            counted.append(self.shape)
        kept, inside[0] = inside[0], True  # the mode asks for the method again
        try:
            return stock(self, *more)
        finally:
            inside[0] = kept

    torch.Tensor.cpu = cpu  # type: ignore[method-assign]
    try:
        draft(case)
    finally:
        torch.Tensor.cpu = stock  # type: ignore[method-assign]
    # Capture is stock's, and copies once.
    return len(counted) - (1 if graph else 0)
