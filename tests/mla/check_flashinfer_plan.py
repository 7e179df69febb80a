"""FlashInfer MLA plans the verify of a replayed graph with stock's numbers."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from lent import Wrapper
from liveness import live
from rooms import CONTEXT, REQUESTS, Batch, furnished, model_runner, server_args
from sglang.srt.layers.attention import flashinfer_mla_backend as module
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from toggling import compare

from sglang_perf_patches.sets.mla import flashinfer_plan

PATCH = "mla.flashinfer-plan"
CAPTURED = 6

for _name in ("BatchMLAPagedAttentionWrapper", "BatchPrefillWithRaggedKVCacheWrapper"):
    setattr(module, _name, Wrapper)
module.fast_mla_decode_plan = Wrapper.begin_forward
module.envs.SGLANG_FLASHINFER_WORKSPACE_SIZE.set(0)
OLD = hasattr(module.FlashInferMLAAttnBackend, "init_forward_metadata_replay_cuda_graph")

CASES = st.fixed_dictionaries(
    {
        "draft": st.integers(1, 5),
        "lengths": st.lists(st.integers(1, CONTEXT - 8), min_size=1, max_size=CAPTURED),
        "padding": st.integers(0, 2),
        "host": st.sampled_from([True, True, True, False]),
        "mode": st.sampled_from([ForwardMode.TARGET_VERIFY] * 3 + [ForwardMode.DECODE]),
    }
)


def verify(case: dict[str, Any]) -> list[Any]:
    """Capture and replay; everything that the wrapper is planned with."""
    arguments = server_args(speculative_num_draft_tokens=case["draft"])
    with furnished(arguments, module.__name__):
        runner = model_runner(arguments, mla=True)
        backend = module.FlashInferMLAAttnBackend(runner)
        backend.init_cuda_graph_state(CAPTURED, CAPTURED * case["draft"])
        bs = min(len(case["lengths"]) + case["padding"], CAPTURED)
        padding = bs - len(case["lengths"])
        host = case["host"] or case["mode"] is ForwardMode.DECODE  # stock's decode needs it
        prepare(backend, forward_batch(runner, case, [1] * bs, 0, True), capture=True)
        metadata = backend.forward_metadata
        wrapper = getattr(metadata, "prefill_wrapper", None) or metadata.decode_wrapper
        wrapper.plans.clear()
        prepare(backend, forward_batch(runner, case, case["lengths"], padding, host))
        assert wrapper.plans, "nothing was planned"
        return [list(wrapper.plans), bs]


def forward_batch(
    runner: Any, case: dict[str, Any], lengths: list[int], padding: int, host: bool
) -> Batch:
    """A verify of these prefix lengths, padded as the graph runner pads it."""
    count, draft = len(lengths), case["draft"]
    bs = count + padding
    seq_lens = torch.tensor(lengths + [1] * padding, dtype=torch.int64)
    requests = torch.randperm(REQUESTS, generator=torch.Generator().manual_seed(count))[:count]
    spec_info = None
    if case["mode"] is ForwardMode.TARGET_VERIFY:
        spec_info = EagleVerifyInput.create_idle_input(
            *((1, draft - 1, draft) + (("cpu",) if takes_device() else ()))
        )
        spec_info.draft_token_num = draft
    return Batch(
        batch_size=bs,
        forward_mode=case["mode"],
        req_pool_indices=torch.cat([requests, requests.new_zeros(padding)]),
        req_to_token_pool=runner.req_to_token_pool,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens.clone() if host else None,
        seq_lens_sum=int(seq_lens.sum()),
        positions=torch.zeros(bs * draft if spec_info else bs),
        spec_info=spec_info,
        encoder_lens=None,
        out_cache_loc=None,
        kv_loc_plan=None,
    )


def takes_device() -> bool:
    """Whether an idle verify input is told its device."""
    return "device" in EagleVerifyInput.create_idle_input.__func__.__code__.co_varnames


def prepare(backend: Any, batch: Batch, capture: bool = False) -> None:
    """Prepare a graph, by the entry that the release has."""
    if not OLD:
        backend.init_forward_metadata_out_graph(batch, in_capture=capture)
    elif capture:
        backend.init_forward_metadata_capture_cuda_graph(
            batch.batch_size,
            batch.positions.numel(),
            batch.req_pool_indices,
            batch.seq_lens,
            None,
            batch.forward_mode,
            batch.spec_info,
        )
    else:
        backend.init_forward_metadata_replay_cuda_graph(
            batch.batch_size,
            batch.req_pool_indices,
            batch.seq_lens,
            batch.seq_lens_sum,
            None,
            batch.forward_mode,
            batch.spec_info,
            batch.seq_lens_cpu,
        )


def run() -> None:
    """Compare, and see whose numbers a verify is planned with."""
    compare(PATCH, verify, CASES, examples=16)
    case = {"draft": 3, "lengths": [40, 7], "padding": 1}
    stock, asked = flashinfer_plan.host_arguments, []

    def counted(lengths: torch.Tensor, draft: int) -> Any:
        asked.append(lengths.tolist())
        return stock(lengths, draft)

    flashinfer_plan.host_arguments = counted
    try:
        with live(PATCH):
            for host in (True, False):
                for mode in (ForwardMode.TARGET_VERIFY, ForwardMode.DECODE):
                    verify({**case, "host": host, "mode": mode})
    finally:
        flashinfer_plan.host_arguments = stock
    assert asked == [[40, 7, 1]], asked
