"""A prefill batch as sglang's own scheduler code makes it: requests, allocation, ForwardBatch."""

from __future__ import annotations

import importlib
import inspect
import tempfile
from array import array
from types import SimpleNamespace
from typing import Any

import torch
from rig import Request, Rig


def scheduled(rig: Rig, requests: list[Request]) -> tuple[Any, Any]:
    """ScheduleBatch and ForwardBatch of the release for these requests."""
    schedule = importlib.import_module("sglang.srt.managers.schedule_batch")
    info = importlib.import_module("sglang.srt.model_executor.forward_batch_info")
    allocators = _allocators()
    allocator = _call(
        allocators.PagedTokenToKVPoolAllocator,
        size=64 * 200,
        page_size=64,
        dtype=torch.float16,
        device=rig.device,
        kvcache=SimpleNamespace(),
        need_sort=False,
    )
    tree = _tree(rig, allocator)
    rig.pool.clear()
    batch = _call(
        schedule.ScheduleBatch.init_new,
        reqs=[_request(rig, allocator, tree, wanted, n) for n, wanted in enumerate(requests)],
        req_to_token_pool=rig.pool,
        token_to_kv_pool_allocator=allocator,
        tree_cache=tree,
        model_config=_model_config(),
        enable_overlap=True,
        spec_algorithm=_no_speculation(),
    )
    batch.prepare_for_extend()
    given = batch.get_model_worker_batch() if hasattr(batch, "get_model_worker_batch") else batch
    runner = _Without(**vars(rig.runner) | _alone_and_plain(batch.model_config))
    forward_batch = _call(
        info.ForwardBatch.init_new,
        batch=given,
        model_runner=runner,
        return_hidden_states_before_norm=False,
    )
    return batch, forward_batch


def _alone_and_plain(model_config: Any) -> dict[str, Any]:
    return {
        "model_config": model_config,
        "dcp_size": 1,
        "attn_dcp_size": 1,
        "ps": _Without(attn_dcp_size=1, dcp_size=1),
        "ngram_embedding_manager": SimpleNamespace(enabled=False),
        "kv_index_translator": SimpleNamespace(rebind_write_loc=lambda _: None),
    }


class _Without(SimpleNamespace):
    """A ModelRunner whose features, but for those given, are off."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def alone() -> None:
    """A process group of this process only, as ForwardBatch asks for its size."""
    state = importlib.import_module("sglang.srt.distributed.parallel_state")
    with tempfile.NamedTemporaryFile() as meeting:
        _call(
            state.init_distributed_environment,
            world_size=1,
            rank=0,
            local_rank=0,
            distributed_init_method=f"file://{meeting.name}.met",
            backend="gloo",
        )
    state.initialize_model_parallel()


def _request(rig: Rig, allocator: Any, tree: Any, wanted: Request, number: int) -> Any:
    schedule = importlib.import_module("sglang.srt.managers.schedule_batch")
    sampling = importlib.import_module("sglang.srt.sampling.sampling_params")
    params = sampling.SamplingParams(max_new_tokens=4, temperature=0)
    total = wanted.cached + wanted.new
    ids: Any = [(7 * number + n) % 90 + 5 for n in range(total)]
    if hasattr(schedule, "array"):  # since 0.5.13
        ids = array("q", ids)
    request = _call(
        schedule.Req,
        rid=str(number),
        origin_input_text="",
        origin_input_ids=ids,
        sampling_params=params,
        vocab_size=100,
        eos_token_ids={2},
    )
    request.init_next_round_input()
    if wanted.cached:
        request.prefix_indices = allocator.alloc(wanted.cached)
    if hasattr(request, "set_extend_range"):  # since 0.5.16 or so
        request.set_extend_range(wanted.cached, total)
    else:
        request.fill_len = total
        request.set_extend_input_len(wanted.new)
    return request


def _tree(rig: Rig, allocator: Any) -> Any:
    module = importlib.import_module("sglang.srt.mem_cache.chunk_cache")
    params = importlib.import_module("sglang.srt.mem_cache.cache_init_params")
    made = _call(
        params.CacheInitParams,
        disable=True,
        req_to_token_pool=rig.pool,
        token_to_kv_pool_allocator=allocator,
        page_size=64,
    )
    return module.ChunkCache(made)


def _model_config() -> Any:
    return _Without(
        vocab_size=100,
        hf_text_config=SimpleNamespace(),
        hf_config=SimpleNamespace(),
    )


def _no_speculation() -> Any:
    module = importlib.import_module("sglang.srt.speculative.spec_info")
    return module.SpeculativeAlgorithm.NONE


def _allocators() -> Any:
    return importlib.import_module("sglang.srt.mem_cache.allocator")


def _call(function: Any, **arguments: Any) -> Any:
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in arguments.items() if name in known})
