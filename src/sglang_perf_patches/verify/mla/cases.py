"""Forward batches of a speculative step, as the releases' workers and graph runners make them."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.eagle_info import EagleDraftInput, EagleVerifyInput

from ..stock import NoneByDefault


class Batch(NoneByDefault):
    """A forward batch, of the fields that metadata is built from; any other is None, as stock's."""


def forward_batch(
    runner: NoneByDefault, mode: ForwardMode, requests: torch.Tensor, lengths: Any, **fields: Any
) -> Batch:
    """A forward batch of these requests, whose lengths the host has too.

    Rows of the runner's request pool, and lengths of their KV, are int64 of shape (requests,).
    `fields` are further ones, or others in their place.
    """
    batch = Batch(
        batch_size=len(requests),
        forward_mode=mode,
        req_pool_indices=requests,
        req_to_token_pool=runner.req_to_token_pool,
        seq_lens=lengths,
        seq_lens_cpu=lengths.cpu(),
        seq_lens_sum=int(lengths.sum()),
    )
    vars(batch).update(fields)
    return batch


def draft_batch(
    runner: NoneByDefault, lengths: list[int], padding: int = 0, *, steps: int = 8
) -> Batch:
    """A draft of these prefix lengths, padded as a replayed graph pads it."""
    count, device = len(lengths), runner.device
    spec_info = EagleDraftInput(topk_p=torch.zeros(count, 1, device=device))
    spec_info.kv_indptr = spec_info.kv_indices = None
    return forward_batch(
        runner,
        ForwardMode.DECODE,
        requests_of(runner, count, padding),
        torch.tensor(lengths + [1] * padding, dtype=torch.int64, device=device),
        positions=torch.tensor(lengths + [0] * padding, dtype=torch.int64, device=device),
        spec_info=spec_info,
        out_cache_loc=torch.arange((count + padding) * steps, device=device),
    )


def requests_of(runner: NoneByDefault, count: int, padding: int = 0) -> torch.Tensor:
    """Rows of the request pool, int64, (count + padding,): the same ones for the same count."""
    noise = torch.Generator().manual_seed(count)
    rows = torch.randperm(runner.req_to_token_pool.size, generator=noise)[:count]
    return torch.cat([rows, rows.new_zeros(padding)]).to(runner.device)


def prepare(backend: Any, batch: Batch, capture: bool = False) -> None:
    """Prepare a draft's graph, by the entry that the release has."""
    if hasattr(backend, "init_forward_metadata_out_graph"):
        backend.init_forward_metadata_out_graph(batch, in_capture=capture)
    elif capture:
        backend.init_forward_metadata_capture_cuda_graph(batch)
    else:
        backend.init_forward_metadata_replay_cuda_graph(batch, batch.batch_size)


def prepare_backend(backend: Any, batch: Batch | NoneByDefault, capture: bool = False) -> None:
    """Prepare the graph of a single backend, by the entry that the release has."""
    if not hasattr(type(backend), "init_forward_metadata_replay_cuda_graph"):
        backend.init_forward_metadata_out_graph(batch, in_capture=capture)
        if not capture and hasattr(backend, "init_forward_metadata_in_graph"):
            backend.init_forward_metadata_in_graph(batch)
    elif capture:
        backend.init_forward_metadata_capture_cuda_graph(
            *(batch.batch_size, batch.positions.numel(), batch.req_pool_indices, batch.seq_lens),
            *(None, batch.forward_mode, batch.spec_info),
        )
    else:
        backend.init_forward_metadata_replay_cuda_graph(
            *(batch.batch_size, batch.req_pool_indices, batch.seq_lens, batch.seq_lens_sum),
            *(None, batch.forward_mode, batch.spec_info, batch.seq_lens_cpu),
        )


def verify_input(draft: int, device: str = "cpu") -> Any:
    """What a verify of chains of `draft` tokens is told, without a mask."""
    create = EagleVerifyInput.create_idle_input
    takes_device = "device" in create.__func__.__code__.co_varnames
    verify = create(1, draft - 1, draft, *((device,) if takes_device else ()))
    verify.draft_token_num = verify.num_tokens_per_req = draft
    return verify
