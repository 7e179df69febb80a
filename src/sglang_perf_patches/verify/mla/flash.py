"""FlashAttention backends of a speculative server with topk = 1, and their batches.

The kernel itself is a CUDA wheel; what it reads is the backend's own: lengths, their sums, and a
page table of which each row holds a request's pages.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention import flashattention_backend
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from ..stock import NoneByDefault
from .cases import Batch, forward_batch, prepare_backend, requests_of, verify_input
from .rig import REQUESTS, model_runner, server_args

CONTEXT = 250
"""Neither whole pages nor whole blocks of the kernels that build tables, as 163840 + 1 would be."""

EXTRA = 12
"""Tokens of a row of the request pool past the context: stock's 4, the drafted ones, and more."""

DRAFT = 4
module: Any = flashattention_backend
HOST_LENGTHS = not hasattr(module, "draft_extend_set_metadata")
"""Whether this release's backend needs the lengths on the host."""

VERIFY, EXTEND = ForwardMode.TARGET_VERIFY, ForwardMode.DRAFT_EXTEND_V2

Case = dict[str, Any]

# 0.5.9 compiles what builds its tables, which takes minutes on a CPU: the same code runs eagerly.
torch.compiler.set_stance("force_eager")


def arguments(page: int) -> NoneByDefault:
    """The server's, which drafts chains of `DRAFT` tokens."""
    return server_args(max_speculative_num_draft_tokens=DRAFT, page_size=page)


def runner_of(
    page: int,
    *,
    context: int = CONTEXT,
    requests: int = REQUESTS,
    device: str | None = None,
) -> NoneByDefault:
    """A draft's runner whose request pool has room past the context, as stock's has."""
    runner = model_runner(
        arguments(page),
        context=-(-(context + EXTRA) // page) * page,
        requests=requests,
        device=device,
        is_draft_worker=True,
        tp_size=1,
        attn_cp_size=1,
    )
    runner.model_config.context_len = context
    return runner


def make(runner: NoneByDefault, **options: Any) -> Any:
    """A backend of one forward: verify, draft-extend, or a step of a draft."""
    return module.FlashAttentionBackend(runner, topk=1, **options)


def batch(
    runner: NoneByDefault,
    mode: Any,
    prefixes: list[int],
    padding: int = 0,
    *,
    host: bool = HOST_LENGTHS,
) -> Batch:
    """A verify or draft-extend of these prefixes, padded as a replayed graph is."""
    count, device = len(prefixes), runner.device
    bs = count + padding
    before = torch.tensor(prefixes, dtype=torch.int64, device=device)
    lengths = before + DRAFT if mode is EXTEND else before
    widths = torch.full((bs,), DRAFT, dtype=torch.int32, device=device)
    spec_info: Any = verify_input(DRAFT, device)
    if mode is EXTEND:
        spec_info = NoneByDefault(
            num_tokens_per_req=DRAFT,
            extend_seq_lens_cpu=[DRAFT] * bs,
            extend_seq_lens_tensor=widths,
            num_accept_tokens=widths,
            num_accepted_tokens=widths,
        )
    return forward_batch(
        runner,
        mode,
        requests_of(runner, count, padding),
        torch.cat([lengths, lengths.new_ones(padding)]),
        extend_seq_lens=widths,
        extend_seq_lens_cpu=[DRAFT] * bs,
        extend_prefix_lens_cpu=[*prefixes, *[0] * padding],
        extend_num_tokens=bs * DRAFT,
        positions=torch.zeros(bs * DRAFT, device=device),
        spec_info=spec_info,
        out_cache_loc=torch.zeros(bs * DRAFT, dtype=torch.int64, device=device),
        **({} if host else {"seq_lens_cpu": None}),
    )


def replayed(backend: Any, runner: NoneByDefault, wanted: Batch) -> Any:
    """Capture and replay one batch; the metadata that its graph reads."""
    captured = batch(runner, wanted.forward_mode, [1] * wanted.batch_size, host=True)
    captured.seq_lens.fill_(1)
    prepare_backend(backend, captured, capture=True)
    metadata = backend.forward_metadata
    prepare_backend(backend, wanted)
    return metadata


def read(metadata: Any, page: int) -> dict[str, Any]:
    """What the kernel reads: of the table, the pages of each row up to the table's width."""
    lengths = metadata.cache_seqlens_int32
    pages = [-(-length // page) for length in lengths.tolist()]
    return {
        "lengths": lengths.clone(),
        "starts": metadata.cu_seqlens_k.clone(),
        "queries": metadata.cu_seqlens_q.clone(),
        "most queries": metadata.max_seq_len_q,
        "width": metadata.page_table.shape[1],
        "table": [
            metadata.page_table[row, :count].to(torch.int32).clone()
            for row, count in enumerate(pages)
        ],
    }


def beyond(table: Any, row: int, page: int) -> int:
    """What memory holds for a page of a row, be it past the row's width or the whole table."""
    at = table.storage_offset() + row * table.stride(0) + page
    memory = torch.empty(0, dtype=table.dtype, device=table.device).set_(table.untyped_storage())
    return int(memory[at]) if at < len(memory) else -1
