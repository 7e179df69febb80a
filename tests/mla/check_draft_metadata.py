"""The TRT-LLM MLA draft prepares what its kernel reads, as stock does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import strategies as st
from lent import Wrapper
from liveness import live
from rooms import CONTEXT, REQUESTS, Batch, furnished, model_runner, server_args
from sglang.srt.layers.attention import flashinfer_mla_backend, trtllm_mla_backend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from toggling import compare

PATCH = "mla.draft-metadata"
POISON = -7
MODULES = (flashinfer_mla_backend.__name__, trtllm_mla_backend.__name__)

for _name in ("BatchMLAPagedAttentionWrapper", "BatchPrefillWithRaggedKVCacheWrapper"):
    setattr(flashinfer_mla_backend, _name, Wrapper)
trtllm_mla_backend._jit_fixup_module = lambda *_: None  # CUDA, compiled at first use
trtllm_mla_backend._multi_ctas_kv_counter_bytes = lambda *_: 0
trtllm_mla_backend.can_use_set_mla_kv_concat_q = lambda *_, **__: False
trtllm_mla_backend.DEFAULT_WORKSPACE_SIZE_MB = 0  # the kernel's scratch, 128 MB
flashinfer_mla_backend.envs.SGLANG_FLASHINFER_WORKSPACE_SIZE.set(0)

CASES = st.fixed_dictionaries(
    {
        "steps": st.integers(2, 5),
        "page": st.sampled_from([32, 64]),
        "lengths": st.lists(st.integers(1, CONTEXT - 8), min_size=0, max_size=5),
        "padding": st.integers(0, 2),
        "graph": st.booleans(),
        "idle": st.booleans(),
    }
)


def draft(case: dict[str, Any], backend_class: Any) -> dict[str, Any]:
    """Prepare one draft; everything that the steps hold for the kernel afterwards."""
    arguments = server_args(speculative_num_steps=case["steps"], page_size=case["page"])
    fp8 = backend_class.__name__.startswith("Tokenspeed")  # it takes no other
    dtype = torch.float8_e4m3fn if fp8 else torch.bfloat16
    runner = model_runner(arguments, mla=True, seed=case["page"], kv_cache_dtype=dtype)
    with furnished(arguments, *MODULES, backend_class.__module__):
        backend = backend_class(runner, 1, case["steps"])
        lengths = case["lengths"]
        if not case["graph"]:
            lengths = lengths or [1]  # stock prepares no eager idle batch
        batch = forward_batch(runner, lengths, case["padding"] if case["graph"] else 0)
        if case["idle"]:
            batch.forward_mode = ForwardMode.IDLE
        if not case["graph"]:
            backend.init_forward_metadata(batch)
            return {
                "metadata": [vars(step.forward_decode_metadata) for step in backend.attn_backends],
                "batch": vars(batch.decode_trtllm_mla_metadata),
            }
        bs = batch.batch_size
        if bs == 0:
            return {}
        backend.init_cuda_graph_state(REQUESTS, REQUESTS)
        for captured in range(1, bs + 1):
            prepare(backend, forward_batch(runner, [1] * captured, 0), capture=True)
        for step in backend.attn_backends:
            step.decode_cuda_graph_kv_indices.fill_(POISON)
        prepare(backend, batch)
        return {
            "metadata": [
                vars(step.decode_cuda_graph_metadata[bs]) for step in backend.attn_backends
            ],
        }


def prepare(backend: Any, batch: Batch, capture: bool = False) -> None:
    """Prepare a graph, by the entry that the release has."""
    if hasattr(backend, "init_forward_metadata_out_graph"):
        backend.init_forward_metadata_out_graph(batch, in_capture=capture)
    elif capture:
        backend.init_forward_metadata_capture_cuda_graph(batch)
    else:
        backend.init_forward_metadata_replay_cuda_graph(batch, batch.batch_size)


def forward_batch(runner: Any, lengths: list[int], padding: int) -> Batch:
    """A draft batch of these prefix lengths, padded as a replayed graph pads it."""
    count = len(lengths)
    seq_lens = torch.tensor(lengths + [1] * padding, dtype=torch.int64)
    requests = torch.randperm(REQUESTS, generator=torch.Generator().manual_seed(count))[:count]
    return Batch(
        batch_size=count + padding,
        forward_mode=ForwardMode.DECODE,
        req_pool_indices=torch.cat([requests, requests.new_zeros(padding)]),
        req_to_token_pool=runner.req_to_token_pool,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens.clone(),
        seq_lens_sum=sum(lengths),
        positions=torch.tensor(lengths + [0] * padding, dtype=torch.int64),
        spec_info=SimpleNamespace(is_draft_input=lambda: True, kv_indptr=None, kv_indices=None),
        decode_trtllm_mla_metadata=None,
        encoder_lens=None,
        out_cache_loc=None,
        kv_loc_plan=None,
        global_num_tokens_cpu=None,
    )


def run() -> None:
    """Compare stock and patched, and see that the removed kernel is not launched."""
    classes = [trtllm_mla_backend.TRTLLMMLAMultiStepDraftBackend]
    try:
        from sglang.srt.layers.attention import tokenspeed_mla_backend
    except ImportError:
        pass
    else:
        classes.append(tokenspeed_mla_backend.TokenspeedMLAMultiStepDraftBackend)
    for backend_class in classes:
        compare(PATCH, lambda case, of=backend_class: draft(case, of), CASES)
    assert launches() == 1
    with live(PATCH):
        assert launches() == 0


def launches() -> int:
    """How often the preparation of one eager draft launches the index kernel."""
    arguments = server_args(page_size=32)
    runner = model_runner(arguments, mla=True)
    with furnished(arguments, *MODULES):
        backend = trtllm_mla_backend.TRTLLMMLAMultiStepDraftBackend(runner, 1, 3)
        kernel = backend.generate_draft_decode_kv_indices
        grids: list[tuple[int, ...]] = []

        class Counted:
            def __getitem__(self, grid: tuple[int, ...]) -> Any:
                grids.append(grid)
                return kernel[grid]

        backend.generate_draft_decode_kv_indices = Counted()
        backend.init_forward_metadata(forward_batch(runner, [40, 7], 0))
        return len(grids)
