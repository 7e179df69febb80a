"""The hierarchical cache's copies to and from the host, at once and on a CPU.

The release's own pools and controllers copy. Stand-ins take the place of pinned memory, of streams
and events, which do at once what is asked of them, and of the kernels that copy rows.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from sglang_perf_patches.verify.stock import MEMORY

_STREAMED = ("sglang.srt.managers.cache_controller", f"{MEMORY}.l2_transfer")
CLOCK = SimpleNamespace(round=0, delay=0)
"""A scheduler's round, and after how many of them it learns that a copy has ended."""


class _Event:
    """Has happened when it is recorded, because all is done at once; it is told of later."""

    def __init__(self, **_: Any) -> None:
        self._known = 0

    def record(self, *_: Any) -> None:
        self._known = CLOCK.round + CLOCK.delay

    def wait(self, *_: Any) -> None:
        self._known = 0

    synchronize = wait

    def query(self) -> bool:
        return bool(CLOCK.round >= self._known)

    def elapsed_time(self, _: Any) -> float:
        return 0.0


class _Stream:
    """Runs everything at once, so nothing has to be waited for."""

    wait_event = wait_stream = synchronize = staticmethod(lambda *_: None)


_DEVICE = SimpleNamespace(
    __name__="at_once",
    Event=_Event,
    Stream=_Stream,
    stream=lambda _: contextlib.nullcontext(),
    current_stream=lambda *_: _Stream(),
)


def lend() -> None:
    """Stand in for streams, pinned memory and kernels that copy rows, in this process."""
    for name in _STREAMED:
        with contextlib.suppress(ModuleNotFoundError):  # l2_transfer came with 0.5.19 or so
            module: Any = importlib.import_module(name)
            module.device_module = _DEVICE
    # Stock keeps 10 GiB of the host free, which a machine may not have; these pools hold kilobytes.
    base: Any = importlib.import_module(f"{MEMORY}.pool_host.base")
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0
    common: Any = importlib.import_module(f"{MEMORY}.pool_host.common")
    common.ALLOC_MEMORY_FUNCS["cpu"] = lambda dims, *, dtype, **_: torch.zeros(dims, dtype=dtype)
    kv = importlib.import_module(f"{MEMORY}.pool_host.mha").MHATokenToKVPoolHost
    try:
        states = importlib.import_module(f"{MEMORY}.pool_host.mamba").MambaPoolHost
    except ModuleNotFoundError:  # it moved with 0.5.18 or so
        states = importlib.import_module(f"{MEMORY}.memory_pool_host").MambaPoolHost
    for kind, pairs, layers in (
        (kv, _kv_pairs, "layer_num"),
        (states, _state_pairs, "num_mamba_layers"),
    ):
        kind.backup_from_device_all_layer, kind.load_to_device_per_layer = _copying(pairs, layers)


def _kv_pairs(host: Any, pool: Any, layer: int) -> list[tuple[Any, Any]]:
    return [
        (host.kv_buffer[0][:, layer], pool.k_buffer[layer]),
        (host.kv_buffer[1][:, layer], pool.v_buffer[layer]),
    ]


def _state_pairs(host: Any, pool: Any, layer: int) -> list[tuple[Any, Any]]:
    cache = pool.mamba_cache
    kept = (host.temporal_buffer, *host.conv_buffer)
    return [
        (each[:, layer, 0], rows[layer])
        for each, rows in zip(kept, (cache.temporal, *cache.conv), strict=True)
    ]


def _copying(pairs: Callable[..., list[tuple[Any, Any]]], layers: str) -> tuple[Any, Any]:
    """What copies to the host, all layers at once, and what copies a layer back."""

    def back_up(self: Any, device_pool: Any, host: Any, device: Any, *_: Any, **__: Any) -> None:
        for layer in range(getattr(self, layers)):
            for kept, rows in pairs(self, device_pool, layer):
                kept[host.long()] = rows[device.long()]

    def load(
        self: Any, device_pool: Any, host: Any, device: Any, layer: int, *_: Any, **__: Any
    ) -> None:
        for kept, rows in pairs(self, device_pool, layer):
            rows[device.long()] = kept[host.long()]

    return back_up, load
