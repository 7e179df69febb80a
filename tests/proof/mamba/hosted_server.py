"""A hybrid model's server with the hierarchical cache, without its model and without a GPU.

Stock's own are, besides what `HybridServer` has: the device's pools of KV and states, what divides
the host's memory and makes its pools, the controller that backs up, loads back and acknowledges,
and the unified radix cache's part in it; `host_copies` has stand-ins for the copies. In the place
of KV stands what tells the token and its position, and it is found again where a request goes on.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sglang_perf_patches.verify import stock
from sglang_perf_patches.verify.comparing import require
from sglang_perf_patches.verify.stock import MEMORY, called
from tests.proof.caches import kv_allocator, unified_cache
from tests.proof.host_copies import CLOCK, lend
from tests.proof.mamba.hybrid_parts import Shape, prefix_params, publish_shape, state_pool
from tests.proof.mamba.hybrid_server import HybridServer


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
        CLOCK.delay = shape.delay
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
            CLOCK.round += self.shape.delay
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
        CLOCK.round += 1
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
