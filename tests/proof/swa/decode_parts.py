"""What a decode worker is made of: the release's own pools, cache, batch and queue, on a CPU.

Stand-ins take the place of the scheduler around them and of the transfers. A `worker` is a
`rig.DecodeWorker`, which is made of these.
"""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from sglang.srt.disaggregation import decode
from sglang.srt.disaggregation.base import conn
from sglang.srt.disaggregation.utils import ReqToMetadataIdxAllocator, TransferBackend
from sglang.srt.managers.schedule_batch import ScheduleBatch
from torch import distributed

from sglang_perf_patches.verify import stock
from sglang_perf_patches.verify.stock import EXTRA_ARGUMENTS, MEMORY, NoneByDefault, called
from tests.proof import requests
from tests.proof.caches import cache_params, unified_cache
from tests.proof.swa.shape import LAYOUTS, Shape


def publish(shape: Shape) -> Any:
    """Publish the server that a worker is a rank of; `EXTRA_ARGUMENTS` give way to its own."""
    own: dict[str, Any] = {
        "page_size": shape.page_size,
        "disable_radix_cache": True,
        "disaggregation_mode": "decode",
        "disaggregation_transfer_backend": "fake",
        "num_reserved_decode_tokens": shape.reserved,
        "device": "cpu",
        **LAYOUTS[shape.layout],
    }
    if shape.over_allocation:
        own["speculative_algorithm"] = "EAGLE"
    names = ("num_draft_tokens", "num_steps", "eagle_topk")
    drafts = {f"speculative_{n}": v for n, v in zip(names, shape.draft or (), strict=False)}
    own |= drafts  # published at once: the gates read that in another thread
    if shape.backup != "default":
        own["disaggregation_decode_retraction_backup"] = shape.backup
    arguments = stock.arguments(**{"chunked_prefill_size": 8192} | EXTRA_ARGUMENTS | own)
    stock.publish(arguments)
    if drafts:
        _resolve(arguments, drafts)
    stock.state_ranks(
        tp_rank=0,
        pp_rank=0,
        dp_rank=None,
        attn_tp_rank=0,
        attn_tp_group=SimpleNamespace(cpu_group=_gloo_group()),
    )
    return arguments


def pools(shape: Shape, kv_cache_dtype: str) -> tuple[Any, Any]:
    """A pool with one layer of each kind, of 8-bit floats or else float32, and its allocator."""
    names = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
    return stock.window_pools(
        shape.full_tokens,
        shape.swa_tokens,
        shape.page_size,
        names.get(kv_cache_dtype, torch.float32),
        heads=1,
        head_dim=4,
        device="cpu",
    )


def tree_cache(shape: Shape, rows: Any, allocator: Any, has_host_pool: bool) -> Any:
    """The cache without prefix sharing that a decode server has.

    Up to 0.5.19 that is one without nodes, unless retracted KV goes to a pool of the host.
    """
    options = {"disable": True, "sliding_window_size": shape.window}
    params = cache_params(rows, allocator, shape.page_size, **options)
    if not has_host_pool:
        with contextlib.suppress(ImportError):  # now there is one cache for all
            return importlib.import_module(f"{MEMORY}.chunk_cache").SWAChunkCache(params)
    return unified_cache(params, "FULL", "SWA")


def batch(worker: Any) -> Any:
    running: Any = ScheduleBatch(reqs=[])
    vars(running).update(
        req_to_token_pool=worker.rows,
        token_to_kv_pool_allocator=worker.allocator,
        tree_cache=worker.tree_cache,
        model_config=SimpleNamespace(is_encoder_decoder=False),
        spec_algorithm=requests.speculation().NONE,
        device="cpu",
        enable_overlap=False,
        filter_batch=worker.keep,
    )
    return running


def scheduler(worker: Any) -> Any:
    """In the place of a ``Scheduler``: what the queue reads of it; all else is off."""
    algorithm = requests.speculation()

    def output(reqs: Sequence[Any], *_: Any) -> None:
        for req in reqs:
            reason = req.finished_reason or req.to_finish
            worker.rejected[req.rid] = reason.message
            worker.counts.aborted += 1

    runner = SimpleNamespace(
        swa_max_total_num_tokens=worker.shape.swa_tokens,
        max_token_pool_size=worker.shape.full_tokens,
        kv_cache_dtype_str="auto",
    )
    return NoneByDefault(
        running_batch=worker.batch,
        waiting_queue=[],
        server_args=worker.server_args,
        sliding_window_size=worker.shape.window,
        spec_algorithm=algorithm.EAGLE if worker.shape.over_allocation else algorithm.NONE,
        tp_worker=SimpleNamespace(is_hybrid_swa=True, model_runner=runner),
        metadata_indices=ReqToMetadataIdxAllocator(4 * worker.shape.in_transfer),
        stream_output=output,
        output_streamer=SimpleNamespace(stream_output=output),
        metrics_reporter=NoneByDefault(),
        ps=SimpleNamespace(pp_rank=0, pp_size=1, dp_rank=0, tp_rank=0, tp_size=1, gpu_id=0),
        pp_size=1,
        dp_rank=0,
        gpu_id=0,
        random_seed=0,
        retire_unadmitted_request=lambda req: None,
    )


def queue(worker: Any) -> Any:
    """The release's ``DecodePreallocQueue``, whose transfers are a stand-in's."""
    kind = decode.DecodePreallocQueue
    options: dict[str, Any] = {
        "req_to_token_pool": worker.rows,
        "token_to_kv_pool_allocator": worker.allocator,
        "draft_token_to_kv_pool": None,
        "req_to_metadata_buffer_idx_allocator": worker.scheduler.metadata_indices,
        "metadata_buffers": None,
        "scheduler": worker.scheduler,
        "transfer_queue": worker.transfers,
        "tree_cache": worker.tree_cache,
        "gloo_group": _gloo_group(),
        "tp_rank": 0,
        "tp_size": 1,
        "dp_size": 1,
        "gpu_id": 0,
        "bootstrap_port": 1,
        "max_total_num_tokens": worker.shape.full_tokens,
        "prefill_pp_size": 1,
        "pp_rank": 0,
        "num_reserved_decode_tokens": worker.shape.reserved,
        "transfer_backend": TransferBackend.FAKE,
    }
    # The manager would connect to another machine; here there is none.
    states = getattr(conn, "StateType", None)
    kv_args = SimpleNamespace(state_types=[states.SWA] if states else [])
    manager = SimpleNamespace(kv_args=kv_args, prefill_info_table={})
    with mock.patch.object(kind, "_init_kv_manager", return_value=manager):
        prealloc = called(kind, **options)
    if worker.shape.layout == "stages" and hasattr(prealloc, "pp_size"):
        prealloc.pp_size = 2
    if worker.shape.layout == "replicas":
        prealloc.draft_token_to_kv_pool = object()
    return prealloc


def _resolve(arguments: Any, resolved: dict[str, Any]) -> None:
    """Set arguments as stock resolves them for its draft model, where the release keeps them."""
    with contextlib.suppress(ImportError):
        from sglang.srt.runtime_context import get_context, get_spec

        if all(hasattr(get_spec(), name) for name in resolved):
            get_context().override("the proof", **resolved)
            return
    for name, value in resolved.items():
        setattr(arguments, name, value)


def _gloo_group() -> Any:
    if not distributed.is_initialized():
        store = tempfile.NamedTemporaryFile(delete=False)  # noqa: SIM115
        distributed.init_process_group("gloo", f"file://{store.name}.store", rank=0, world_size=1)
    return distributed.group.WORLD
