"""A FlashAttention draft with topk = 1 reads from one page table what stock's steps read."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from liveness import live
from rooms import CONTEXT, REQUESTS, Batch, furnished, model_runner, server_args
from sglang.srt.layers.attention import flashattention_backend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.eagle_info import EagleDraftInput
from toggling import compare

PATCH = "mla.shared-draft-tables"
CAPTURED = 6

CASES = st.fixed_dictionaries(
    {
        "steps": st.integers(2, 5),
        "topk": st.sampled_from([1, 1, 1, 2]),
        "page": st.sampled_from([1, 4, 16]),
        "rounds": st.lists(
            st.lists(st.integers(1, CONTEXT - 8), min_size=1, max_size=CAPTURED),
            min_size=1,
            max_size=3,
        ),
        "padding": st.integers(0, 2),
    }
)


def arguments(case: dict[str, Any]) -> Any:
    """The server's."""
    return server_args(
        speculative_num_steps=case["steps"],
        speculative_num_draft_tokens=case["steps"] + 1,
        speculative_eagle_topk=case["topk"],
        page_size=case["page"],
    )


def make(case: dict[str, Any]) -> tuple[Any, Any]:
    """A draft backend with its graph state."""
    runner = model_runner(arguments(case), is_draft_worker=True)
    backend = flashattention_backend.FlashAttentionMultiStepBackend(
        runner, case["topk"], case["steps"]
    )
    backend.init_cuda_graph_state(CAPTURED, CAPTURED * case["topk"])
    return backend, runner


def draft(case: dict[str, Any]) -> list[Any]:
    """Replay drafts, after all their graphs were captured; what each step's kernel reads."""
    with furnished(arguments(case), flashattention_backend.__name__):
        backend, runner = make(case)
        for bs in range(1, CAPTURED + 1):
            prepare(backend, forward_batch(runner, case, [1] * bs, 0), capture=True)
        found = []
        for lengths in case["rounds"]:
            padding = min(case["padding"], CAPTURED - len(lengths))
            batch = forward_batch(runner, case, lengths, padding)
            prepare(backend, batch)
            bs = batch.batch_size
            for step in backend.attn_backends:
                found.append(read(step, bs, case))
        return found


def read(step: Any, bs: int, case: dict[str, Any]) -> dict[str, Any]:
    """The metadata that a step's captured kernel reads; of the table, each request's prefix."""
    if case["topk"] > 1:
        metadata = step.draft_decode_metadata_topk_normal[bs]
        return {"lengths": metadata.cache_seqlens_int32, "table": metadata.page_table.clone()}
    metadata = step.decode_cuda_graph_metadata[bs]
    assert step.forward_metadata is metadata
    pages = [-(-length // case["page"]) for length in metadata.cache_seqlens_int32.tolist()]
    return {
        "lengths": metadata.cache_seqlens_int32.clone(),
        "starts": metadata.cu_seqlens_k.clone(),
        "queries": metadata.cu_seqlens_q.clone(),
        "table": [
            row[:count].clone() for row, count in zip(metadata.page_table, pages, strict=True)
        ],
        "width": metadata.page_table.shape,
        "step": (metadata.max_seq_len_q, metadata.max_seq_len_k),
    }


def forward_batch(runner: Any, case: dict[str, Any], lengths: list[int], padding: int) -> Batch:
    """A draft batch, padded as the draft's graph runner pads it."""
    count = len(lengths)
    bs = count + padding
    seq_lens = torch.tensor(lengths + [1] * padding, dtype=torch.int64)
    requests = torch.randperm(REQUESTS, generator=torch.Generator().manual_seed(count))[:count]
    topk, steps = case["topk"], case["steps"]
    return Batch(
        batch_size=bs,
        forward_mode=ForwardMode.DECODE,
        req_pool_indices=torch.cat([requests, requests.new_zeros(padding)]),
        req_to_token_pool=runner.req_to_token_pool,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens.clone(),
        seq_lens_sum=int(seq_lens.sum()),
        positions=seq_lens.repeat_interleave(topk),
        spec_info=EagleDraftInput(topk_p=torch.zeros(count, topk)),
        encoder_lens=None,
        out_cache_loc=torch.arange(bs * topk * steps),
        kv_loc_plan=None,
        global_num_tokens_cpu=None,
        _original_batch_size=None,
    )


def prepare(backend: Any, batch: Batch, capture: bool = False) -> None:
    """Prepare a graph."""
    backend.init_forward_metadata_out_graph(batch, in_capture=capture)


def run() -> None:
    """Compare; see that one table is built, and that windows are left to stock."""
    compare(PATCH, draft, CASES, examples=8)
    assert builds() == 4
    with live(PATCH):
        assert builds() == 1
        assert tables() == 1
    assert tables() == 4
    with live(PATCH, ran=False):
        assert tables(topk=2) == 4


def builds() -> int:
    """How many launches of the table's kernel one replay of a five-step draft takes."""
    case = {"steps": 5, "topk": 1, "page": 1, "rounds": [[40, 7]], "padding": 0}
    stock, launched = flashattention_backend.normal_decode_set_metadata, []

    def counted(*given: Any, **named: Any) -> None:
        launched.append(given)
        stock(*given, **named)

    with furnished(arguments(case), flashattention_backend.__name__):
        backend, runner = make(case)
        prepare(backend, forward_batch(runner, case, [1, 1], 0), capture=True)
        flashattention_backend.normal_decode_set_metadata = counted
        try:
            prepare(backend, forward_batch(runner, case, [40, 7], 0))
        finally:
            flashattention_backend.normal_decode_set_metadata = stock
    return len(launched)


def tables(topk: int = 1) -> int:
    """How many page tables a five-step draft holds."""
    case = {"steps": 5, "topk": topk, "page": 1}
    with furnished(arguments(case), flashattention_backend.__name__):
        backend, _ = make(case)
        states = [step.decode_cuda_graph_metadata for step in backend.attn_backends]
        return len({state["page_table_draft_decode"].data_ptr() for state in states})
