"""A prefill batch as sglang's own scheduler code makes it: requests, allocation, ForwardBatch."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from sglang_perf_patches.verify.mamba.cases import Request
from sglang_perf_patches.verify.mamba.rig import Rig, alone
from sglang_perf_patches.verify.stock import MEMORY, NoneByDefault, called
from tests.proof import requests
from tests.proof.caches import cache_params, kv_allocator
from tests.proof.mamba.hybrid_parts import schedule_batch

SCHEDULED = (
    (Request(65), Request(9), Request(70, 64), Request(128, 128)),
    # In the next decode the first and the third reach 256 tokens, where it tracks.
    (Request(255), Request(9), Request(191, 64), Request(128, 128)),
)
"""Requests of which the release's own scheduler makes a batch."""


def scheduled(rig: Rig, requests: Sequence[Request]) -> tuple[Any, Any]:
    """ScheduleBatch and ForwardBatch of the release for these requests; the pool is cleared."""
    alone()
    pages = kv_allocator(64, 64 * 200, device=rig.device)
    rig.pool.clear()
    return _extending(rig, pages, _tree(rig, pages), requests)


def mixed(rig: Rig, running: Any, requests: Sequence[Request]) -> Any:
    """The ForwardBatch of a prefill of further requests, mixed with the step of `decoding`."""
    return mixing(rig, running, requests)[1]


def mixing(rig: Rig, running: Any, requests: Sequence[Request]) -> tuple[Any, Any]:
    pages, tree = running.token_to_kv_pool_allocator, running.tree_cache
    batch, _ = _extending(rig, pages, tree, requests)
    batch.mix_with_running(running)
    if batch.input_ids is None:
        batch.input_ids = torch.full((batch.extend_num_tokens,), 5, device=rig.device)
    return batch, _forward_batch(rig, batch)


def _extending(rig: Rig, pages: Any, tree: Any, requests: Sequence[Request]) -> tuple[Any, Any]:
    reqs = [_request(pages, tree, wanted, n) for n, wanted in enumerate(requests)]
    batch = schedule_batch(reqs, rig.pool, pages, tree, 100, enable_overlap=True)
    batch.prepare_for_extend()
    return batch, _forward_batch(rig, batch)


def decoding(rig: Rig, batch: Any) -> Any:
    """The ForwardBatch of the step after `scheduled`, once each request has its first token."""
    for request in batch.reqs:
        request.output_ids.append(5)
    batch.output_ids = torch.full((len(batch.reqs),), 5, dtype=torch.int64, device=rig.device)
    batch.prepare_for_decode()
    if batch.input_ids is None:  # since 0.5.13 or so the worker takes them from the last step
        batch.input_ids = batch.output_ids
    return _forward_batch(rig, batch)


def _forward_batch(rig: Rig, batch: Any) -> Any:
    info = importlib.import_module("sglang.srt.model_executor.forward_batch_info")
    plan = SimpleNamespace(bind=lambda *_, **__: None)
    alone_and_plain = {
        "model_config": batch.model_config,
        "dcp_size": 1,
        "attn_dcp_size": 1,
        "ps": NoneByDefault(attn_dcp_size=1, dcp_size=1),
        "ngram_embedding_manager": SimpleNamespace(enabled=False),
        "kv_index_translator": SimpleNamespace(
            rebind_write_loc=lambda _: None, own_plan=lambda _: plan
        ),
    }
    return called(
        info.ForwardBatch.init_new,
        batch=getattr(batch, "get_model_worker_batch", lambda: batch)(),
        model_runner=NoneByDefault(**vars(rig.runner) | alone_and_plain),
        return_hidden_states_before_norm=False,
    )


def _request(pages: Any, tree: Any, wanted: Request, number: int) -> Any:
    total = wanted.cached + wanted.new
    request = requests.request(
        str(number),
        [(7 * number + n) % 90 + 5 for n in range(total)],
        sampling={"max_new_tokens": 4, "temperature": 0},
        vocab_size=100,
        eos_token_ids={2},
    )
    request.init_next_round_input()
    if wanted.cached:
        request.prefix_indices = pages.alloc(wanted.cached)
    if hasattr(request, "extend_end"):  # since 0.5.22 or so; a radix tree would know the prefix
        request.prefix_len, request.extend_end = wanted.cached, total
        indices = getattr(request, "prefix_indices", torch.empty(0, dtype=torch.int64))
        tree.prefixes[request.rid] = indices
        tree.prefix_device_indices = lambda asked: tree.prefixes[asked.rid]
    elif hasattr(request, "set_extend_range"):  # since 0.5.16 or so
        request.set_extend_range(wanted.cached, total)
    else:
        request.fill_len = total
        request.set_extend_input_len(wanted.new)
    return request


def _tree(rig: Rig, pages: Any) -> Any:
    params = cache_params(rig.pool, pages, 64, disable=True)
    try:
        return importlib.import_module(f"{MEMORY}.chunk_cache").ChunkCache(params)
    except ModuleNotFoundError:  # since 0.5.22 or so
        tree = importlib.import_module(f"{MEMORY}.radix_cache").RadixCache(params)
        tree.prefixes = {}
        return tree
