"""Sizes the host's state pool to match its KV pool, so that more prefixes are reused.

With the hierarchical cache, stock backs up the KV of each cached prefix and, one a node of the
radix cache, the state that its last token left. A request continues from the host only where both
are. Stock makes the host's pools in `build_hybrid_mamba_stack`, each as large as the device's times
a ratio, or times what makes both as large as ``--hicache-size``; and the device's slots follow from
how many requests run at once. Both constructors take a size in gigabytes too. While stock's
function runs, they get the sizes that prefixes need, with the same sum.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

from ....model.declaration import Declaration
from ....model.patch import of
from ..proven import STATES

_MEMORY = "sglang.srt.mem_cache"
_ASSEMBLER = f"{_MEMORY}.hybrid_cache.hybrid_pool_assembler"
_CONTEXT = "sglang.srt.runtime_context"
_HOST_STATES = f"{_MEMORY}.pool_host.mamba:MambaPoolHost"
_POOLS = f"{_MEMORY}.memory_pool"
_COMPONENT = f"{_MEMORY}.unified_cache.components.mamba:MambaComponent"

PATCH = Declaration(
    *(__name__, "0.5.22 … 0.5.23"),
    only_with=("states", "host-cache", "torch", "tokens-per-state", "known-host-cache"),
    proven_with=dict.fromkeys((*STATES, "tensor-parallel", "hierarchical-cache"), "verify"),
    anchors=(f"{_ASSEMBLER}:build_mamba_host_pool",),
    absent_because="tested only on 0.5.22 and later",
    depends=(
        f"{_ASSEMBLER}:_split_hicache_size",
        f"{_ASSEMBLER}:build_mamba_host_pool",
        f"{_ASSEMBLER}:attach_hybrid_pool_to_unified_cache",
        *of(f"{_MEMORY}.pool_host.mha:MHATokenToKVPoolHost", "__init__", "get_size_per_token"),
        f"{_HOST_STATES}.get_size_per_token",
        f"{_MEMORY}.pool_host.base:HostKVCache.__init__",
        f"{_POOLS}:MHATokenToKVPool.get_kv_size_bytes",
        f"{_POOLS}:MambaPool.get_kv_size_bytes",
        f"{_POOLS}:HybridReqToTokenPool.copy_mamba_state",
        *of(_COMPONENT, "build_hicache_transfers", "commit_hicache_transfer"),
        f"{_COMPONENT}.create_match_validator",
        *of(f"{_MEMORY}.unified_radix_cache:UnifiedRadixCache", "init_hicache", "load_back"),
    ),
    awaits=(_CONTEXT,),
    anytime="pools keep the sizes that they were made with, whoever computed them",
)

logger = logging.getLogger("sglang_perf_patches")

VARIABLE = "SGLANG_PERF_PATCHES_TOKENS_PER_STATE"
"""Set by an operator: how many tokens of KV a cached state comes with."""

_TESTED = {
    "hicache_write_policy": "write_through",
    "hicache_storage_backend": None,
    "hicache_host_memory_mode": "cache",
    "hicache_mem_layout": "page_first",
    "hicache_io_backend": "kernel",
}
"""Argument of the hierarchical cache → the value with which the patch was tested."""

GIGABYTE = 10**9
"""What ``--hicache-size`` counts in."""


@PATCH.setup()
def setup(patch):
    patch.state.sizes = None  # of KV and states in gigabytes; None for stock's own


@PATCH.replaces(f"{_ASSEMBLER}:build_hybrid_mamba_stack")
def build_hybrid_mamba_stack(*, patch, stock, **kwargs):
    memory = patch.module(_CONTEXT).get_memory()
    reason = unserved(kwargs, memory)
    planned = None if reason else plan(kwargs, memory)
    if planned is None:
        patch.gate(reason or "the host's pools are smaller than the device's")
        return stock(**kwargs)
    patch.ran.seen = True
    patch.state.sizes = planned
    try:
        return stock(**kwargs)
    finally:
        patch.state.sizes = None


@PATCH.replaces(f"{_ASSEMBLER}:build_kv_host_pool")
def build_kv_host_pool(*, patch, stock, **kwargs):
    sizes = patch.state.sizes
    return stock(**{**kwargs, "host_size": sizes[0]} if sizes else kwargs)


@PATCH.replaces(f"{_HOST_STATES}.__init__")
def init(self, pool, ratio, size, *args, patch, stock, **kwargs):
    sizes = patch.state.sizes
    stock(self, pool, ratio, sizes[1] if sizes else size, *args, **kwargs)


def unserved(kwargs: dict[str, Any], memory: Any) -> str | None:
    """Why a server gets stock's pools; None if it gets other sizes."""
    for name, tested in _TESTED.items():
        value = getattr(memory, name)
        if value != tested:
            return f"it was not tested with {name}={value}"
    cached = kwargs["params"].token_to_kv_pool_allocator.get_kvcache()
    kv = kwargs["decls"][0].device_pool  # the first one that the arguments declare
    for pool, name in ((cached, "HybridLinearKVPool"), (kv, "MHATokenToKVPool")):
        # Sparse attention keeps indices besides; latent KV and that of 4 bits have other pools.
        if type(pool).__name__ != name:
            return f"KV is in a {type(pool).__name__}"
    if getattr(kwargs["mamba_pool"], "_slot_siblings", ()):
        return "slots hold more than states"
    if kv.post_capture_active:
        return "pools get their sizes after graphs were captured"
    tokens = os.environ.get(VARIABLE, "").strip()
    if not tokens:
        return f"{VARIABLE} is not given"
    return None if tokens.isdecimal() and int(tokens) else f"{VARIABLE} is no number above 0"


def plan(kwargs: dict[str, Any], memory: Any) -> tuple[float, float] | None:
    """Gigabytes for KV and states, with `VARIABLE` tokens of KV a state; None for stock's."""
    kv, states = kwargs["decls"][0].device_pool, kwargs["mamba_pool"]
    cells = Cells(state_bytes(states), kv_bytes(kv))
    device = Pools(int(states.size), int(kv.size))
    size = memory.hicache_size
    stocks = stock_pools(cells, device, memory.hicache_ratio, size)
    total = int(size * GIGABYTE) if size else stocks.bytes(cells)
    pools = divided(cells, total, device, int(os.environ[VARIABLE]))
    if pools is None:
        return None
    logger.info(
        "mamba.host-states: %d states and KV for %d tokens on the host, instead of %d and %d",
        *(pools.states, pools.tokens, stocks.states, stocks.tokens),
    )
    return pools.tokens * cells.token / GIGABYTE, pools.states * cells.state / GIGABYTE


def kv_bytes(pool: Any) -> int:
    """Bytes of one token, over all layers of a pool."""
    return sum(int(rows[0].nbytes) for rows in (*pool.k_buffer, *pool.v_buffer))


def state_bytes(pool: Any) -> int:
    """Bytes of one slot, over all layers of a pool."""
    cache = pool.mamba_cache
    return sum(int(rows[:, 0].nbytes) for rows in (*cache.conv, cache.temporal))


@dataclass(frozen=True)
class Cells:
    """What a model keeps on one GPU, in bytes over all its layers."""

    state: int  # of one slot: the state after some token
    token: int  # KV of one token


@dataclass(frozen=True)
class Pools:
    """What two pools hold, on the device or on the host."""

    states: int
    tokens: int

    def bytes(self, cells: Cells) -> int:
        """Bytes of both pools."""
        return self.states * cells.state + self.tokens * cells.token


def stock_pools(cells: Cells, device: Pools, ratio: float, gigabytes: float) -> Pools:
    """What stock's hierarchical cache makes on the host, next to the device's pools.

    `ratio` (``--hicache-ratio``) counts if `gigabytes` (``--hicache-size``) is 0.
    """
    if gigabytes:
        ratio = gigabytes * GIGABYTE / device.bytes(cells)
    return Pools(int(device.states * ratio), int(device.tokens * ratio))


def divided(cells: Cells, total: int, device: Pools, tokens_per_state: int) -> Pools | None:
    """As many states as fit into `total` bytes together with their KV; None if that is too little.

    Neither pool is smaller than the device's, because what is on the device is on the host too.
    """
    if total < device.bytes(cells):
        return None
    states = total // (cells.state + tokens_per_state * cells.token)
    most = (total - device.tokens * cells.token) // cells.state
    states = min(max(states, device.states), most)
    return Pools(states, (total - states * cells.state) // cells.token)
