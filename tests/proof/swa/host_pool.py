"""The host pool of retracted KV that a decode server has by default from 0.5.18 on, without a GPU.

Stock's own: whether there is one and how large it is, what is backed up (``UnifiedRadixCache``),
the order in which slots are taken and given back (``HostPoolGroup``), and what happens where there
are none (``ScheduleBatch``). A stand-in takes the place of pinned memory, and of the controller
whose copies need a GPU's streams.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch


def resolved(rows: Any, allocator: Any) -> float | None:
    """Slots of the host's pools over the device's, as stock resolves them; None without one."""
    try:
        builder = importlib.import_module("sglang.srt.mem_cache.kv_cache_builder")
        context = importlib.import_module("sglang.srt.runtime_context")
    except ImportError:
        return None
    if not hasattr(builder, "resolve_decode_retraction_backup"):
        return None
    pool = allocator.get_kvcache()
    plain = SimpleNamespace(architectures=["GptOssForCausalLM"])
    plain.get_text_config = lambda: plain
    runner = SimpleNamespace(
        mtp_draft_device_pools=(),
        spec_algorithm=SimpleNamespace(is_dspark=lambda: False),
        model_config=SimpleNamespace(
            hf_config=plain, hf_text_config=plain, linear_attn_registry_result=None
        ),
    )
    worker = SimpleNamespace(
        is_hybrid_swa=True,
        get_memory_pool=lambda: (rows, allocator),
        get_tokens_per_layer_info=lambda: (pool.full_kv_pool.size, pool.swa_kv_pool.size),
        model_runner=runner,
    )
    backend = builder.resolve_decode_retraction_backup(tp_worker=worker)
    return float(context.get_memory().hicache_ratio) if backend == "host_pool" else None


def attach(cache: Any, pool: Any, ratio: float) -> None:
    """Give a ``UnifiedRadixCache`` the host's pools, `ratio` times as large as the device's."""
    try:
        groups = importlib.import_module("sglang.srt.mem_cache.pool_host.group")
    except ImportError:
        groups = importlib.import_module("sglang.srt.mem_cache.memory_pool_host")
    names = importlib.import_module("sglang.srt.mem_cache.hicache_storage").PoolName
    parts = ((names.KV, pool.full_kv_pool), (names.SWA, pool.swa_kv_pool))
    entries = [
        groups.PoolEntry(
            name=name,
            host_pool=_Slots(part, ratio, cache.page_size),
            device_pool=part,
            layer_mapper=lambda layer: layer,
            is_primary_index_anchor=name == names.KV,
        )
        for name, part in parts
    ]
    cache.host_pool_group = groups.HostPoolGroup(entries)
    cache.cache_controller = _Controller(cache.host_pool_group)


class _Slots:
    """In the place of a ``HostKVCache``: slots in whole pages, and room for what they hold."""

    layout = "layer_first"
    device = "cpu"
    can_use_write_back_jit = False
    shared_allocation_domain = None

    def __init__(self, part: Any, ratio: float, page_size: int) -> None:
        self.page_size = page_size
        pages = int(part.size * ratio) // page_size + 1
        self.size = self.logical_size = pages * page_size
        self.slots = torch.arange(self.size)
        self.buffers = [
            torch.zeros((self.size, *buffer.shape[1:]), dtype=buffer.dtype)
            for buffer in buffers(part)
        ]

    def alloc(self, need_size: int) -> Any:
        if need_size > len(self.slots):
            return None
        taken, self.slots = self.slots[:need_size], self.slots[need_size:]
        return taken

    def available_size(self) -> int:
        return len(self.slots)

    def free(self, indices: Any) -> int:
        self.slots = torch.cat([self.slots, indices])
        return len(indices)


class _Controller:
    """In the place of a ``HybridCacheController``: it copies at once, on the CPU."""

    layer_num = transfer_layer_id_max = 2
    pp_prefetch_command_group = None

    def __init__(self, group: Any) -> None:
        self._group = self.mem_pool_host = group
        self.l2_transfer_engine = self

    def _resolve_pool_transfers_allocation(self, transfers: Any, **options: Any) -> Any:
        """0.5.18: slots for what goes along, by stock's own method."""
        module = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller"
        stock = importlib.import_module(module).HybridCacheController
        return stock._resolve_pool_transfers_allocation(self, transfers, **options)

    def allocate_host_transfers(self, device_indices: Any, extra: Any, *, reclaim: Any) -> Any:
        """Slots in every pool, or in none; from 0.5.21 on this is the controller's."""
        slots = self._group.alloc(len(device_indices), reclaim=reclaim)
        if slots is None:
            return None
        resolved = self._group.resolve_host_transfers(
            extra, primary_device_indices=device_indices, primary_host_indices=slots
        )
        if resolved is None and extra:
            self._group.free(slots)
            return None
        return slots, resolved

    def _resolve_device_transfers(self, transfers: Any, **_: Any) -> Any:
        return transfers

    def _move_op_indices(self, operation: Any) -> tuple[Any, Any, Any]:
        return operation.host_indices, operation.device_indices, operation.pool_transfers

    _move_write_operation = _move_op_indices

    def _l2_transfers(self, host: Any, device: Any, pools: Sequence[Any] | None) -> list[Any]:
        anchor = self._group.anchor_entry
        along = [
            (self._group.entry_map[each.name], each.host_indices, each.device_indices)
            for each in pools or ()
        ]
        return [(anchor, host, device), *along]

    _l2_load_transfers = _l2_transfers

    def submit_device_to_host(self, transfers: Sequence[Any]) -> Any:
        for kept, host, buffer, device in _pairs(transfers):
            kept[host] = buffer[device]
        return _DONE

    def submit_host_to_device(self, transfers: Sequence[Any], **_: Any) -> Any:
        for kept, host, buffer, device in _pairs(transfers):
            buffer[device] = kept[host]
        return _DONE


_DONE = SimpleNamespace(finish_event=SimpleNamespace(synchronize=lambda: None))


def _pairs(transfers: Sequence[Any]) -> Iterator[tuple[Any, Any, Any, Any]]:
    for entry, host, device in transfers:
        for kept, buffer in zip(entry.host_pool.buffers, buffers(entry.device_pool), strict=True):
            yield kept, host, buffer, device


def buffers(part: Any) -> list[Any]:
    return [*part.k_buffer, *part.v_buffer]
