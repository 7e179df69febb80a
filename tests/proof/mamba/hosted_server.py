"""A hybrid model's server with the hierarchical cache, without its model and without a GPU.

Stock's own are, besides what `HybridServer` has: the device's pools of KV and states, what divides
the host's memory and makes its pools, the controller that backs up, loads back and acknowledges,
and the unified radix cache's part in it. Stand-ins take the place of pinned memory, of streams and
events, which do at once what is asked of them, and of the kernels that copy rows. In the place of
KV stands what tells the token and its position, and it is found again where a request goes on.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from sglang_perf_patches.verify import stock
from sglang_perf_patches.verify.comparing import require
from sglang_perf_patches.verify.stock import MEMORY, called
from tests.proof.caches import kv_allocator, unified_cache
from tests.proof.mamba.hybrid_parts import Shape, prefix_params, publish_shape, state_pool
from tests.proof.mamba.hybrid_server import HybridServer

_STREAMED = ("sglang.srt.managers.cache_controller", f"{MEMORY}.l2_transfer")


@dataclass(frozen=True, kw_only=True)
class Hosted(Shape):
    """The settings of a server whose prefixes are kept on the host too."""

    ratio: float = 2.0  # the host's pools over the device's: ``--hicache-ratio``
    gigabytes: float = 0  # both of the host's pools: ``--hicache-size``; 0 for the ratio
    policy: str = "write_through"  # ``--hicache-write-policy``
    kv_layer: int = 1  # the number of the layer that has KV; layer 0 has states
    more: tuple[tuple[str, Any], ...] = ()
    delay: int = 0  # rounds until the scheduler learns that a copy to or from the host has ended


class HostedServer(HybridServer):
    """With the hierarchical cache; `found`: a prefill's tokens from the device and the host."""

    shape: Hosted

    def __init__(self, shape: Hosted) -> None:
        lend()
        _CLOCK.delay = shape.delay
        self.found: dict[str, tuple[int, int]] = {}
        self._args = publish_shape(
            shape,
            enable_hierarchical_cache=True,
            hicache_ratio=shape.ratio,
            hicache_size=shape.gigabytes,
            hicache_write_policy=shape.policy,
            hicache_mem_layout="page_first",
            **dict(shape.more),
        )
        super().__init__(shape)  # publishes a server without a host's cache, the first time
        stock.publish(self._args)
        self.scheduler.enable_hierarchical_cache = True

    def _make_pool(self) -> Any:
        return state_pool(self.shape)

    def _make_kv(self) -> Any:
        pools = importlib.import_module(f"{MEMORY}.memory_pool")
        self.rows = called(
            pools.HybridLinearKVPool,
            size=self.shape.tokens,
            dtype=torch.float32,
            page_size=self.shape.page,
            head_num=1,
            head_dim=2,
            full_attention_layer_ids=[self.shape.kv_layer],
            device="cpu",
            mamba_pool=self.pool.mamba_pool,
            enable_memory_saver=False,
        )
        options = {"kvcache": self.rows, "dtype": torch.float32}
        return kv_allocator(self.shape.page, self.shape.tokens, **options)

    def _make_tree(self) -> Any:
        params = prefix_params(self.shape, self.pool, self.kv)
        tree = unified_cache(params, "FULL", "MAMBA")
        tree.init_hicache(self._args, params)
        return tree

    def check_drained(self) -> None:
        """The same, when all copies have been noticed."""
        for _ in range(2):
            self.settle_copies()
            _CLOCK.round += self.shape.delay
            self.settle_copies()
        super().check_drained()

    def host_pools(self) -> tuple[int, int]:
        """Tokens of KV and states that the host's pools hold."""
        kv, states = (entry.host_pool for entry in self.tree.host_pool_group.entries)
        return int(kv.size), int(states.size)

    def settle_copies(self) -> None:
        if hasattr(self.tree, "flush_pending_backups"):
            self.tree.flush_pending_backups()
        self.tree.check_hicache_events()

    def step(self) -> None:
        _CLOCK.round += 1
        self.settle_copies()
        super().step()

    def _forward(self, batch: Any) -> None:
        for row, req in enumerate(batch.reqs):
            device, host = int(req.cached_tokens_device), int(req.cached_tokens_host)
            self.found.setdefault(req.rid, (device, host))
            self._check_rows(req, int(batch.prefix_lens[row]))
            self._write_rows(req, int(batch.prefix_lens[row]), int(batch.extend_lens[row]))
        super()._forward(batch)
        if not self.shape.delay:
            self.settle_copies()

    def _goes_on(self, req: Any, start: int, end: int, ids: Sequence[int] = ()) -> None:
        super()._goes_on(req, start, end, ids)
        if ids or end == start + 1:
            self._write_rows(req, start, end - start, ids)

    def _write_rows(self, req: Any, start: int, count: int, ids: Sequence[int] = ()) -> None:
        where = self._slots_of(req)[start : start + count]
        told = self._told_rows(req, start, start + count, ids)
        for buffer in self._buffers():
            buffer[where] = told[:, None, None].to(buffer.dtype)

    def _check_rows(self, req: Any, end: int) -> None:
        where = self._slots_of(req)[:end]
        told = self._told_rows(req, 0, end)
        for buffer in self._buffers():
            is_equal = torch.equal(buffer[where][:, 0, 0], told.to(buffer.dtype))
            require(is_equal, f"{req.rid} finds other KV in its first {end} tokens")

    def _told_rows(self, req: Any, start: int, end: int, ids: Sequence[int] = ()) -> torch.Tensor:
        ids = (ids or [*req.origin_input_ids, *req.output_ids])[start:end]
        return torch.tensor([token * 4096 + start + n for n, token in enumerate(ids)])

    def _slots_of(self, req: Any) -> torch.Tensor:
        holder = req if hasattr(req, "req_pool_idx") else req.kv
        slots: torch.Tensor = self.pool.req_to_token[holder.req_pool_idx].long()
        return slots

    def full(self) -> Any:
        return self.rows.full_kv_pool

    def _buffers(self) -> list[Any]:
        return [*self.full().k_buffer, *self.full().v_buffer]


_CLOCK = SimpleNamespace(round=0, delay=0)


class _Event:
    """Has happened when it is recorded, because all is done at once; it is told of later."""

    def __init__(self, **_: Any) -> None:
        self._known = 0

    def record(self, *_: Any) -> None:
        self._known = _CLOCK.round + _CLOCK.delay

    def wait(self, *_: Any) -> None:
        self._known = 0

    synchronize = wait

    def query(self) -> bool:
        return bool(_CLOCK.round >= self._known)

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
