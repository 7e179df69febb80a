"""A unified radix cache over the release's own pools, to which things happen one by one.

What comes and goes is what a scheduler does: a request matches a prefix, locks it, takes slots, is
inserted, runs on under its lock and ends. Slots that are short are evicted for. Nothing stands in
for anything but the server around it.
"""

from __future__ import annotations

import importlib
from array import array
from dataclasses import dataclass
from typing import Any

import torch

from sglang_perf_patches.verify.comparing import require
from sglang_perf_patches.verify.stock import MEMORY, called
from sglang_perf_patches.verify.stock import publish_server as publish
from tests.proof.caches import cache_params, component_module, kv_allocator, unified_cache
from tests.proof.mamba.hybrid_parts import Shape as StatesShape
from tests.proof.mamba.hybrid_parts import bare_state_pool
from tests.proof.swa.decode_parts import pools as window_pools
from tests.proof.swa.shape import Shape as WindowShape

STATES_CHUNK = 64
"""Tokens between two states that can be cached."""

_BESIDE = {"full": (), "window": ("SWA",), "states": ("MAMBA",)}
"""Kind of a cache → stock's names of what it owns beside the KV of full attention."""

KINDS = tuple(_BESIDE)
POLICIES = ("lru", "lfu", "fifo", "filo", "priority", "slru")
"""Stock's orders that the patch serves; ``mru`` is left to stock."""


@dataclass(frozen=True)
class Shape:
    """A cache.

    Attributes:
        kind: one of `KINDS`: what it owns beside the KV of full attention.
        page: in tokens.
        tokens: slots for KV.
        window: in tokens.
        window_tokens: slots for KV of windows.
        states: slots for states.
        policy: stock's name of the order in which leaves are evicted.
        bigrams: whether keys are pairs of tokens, as with EAGLE.
    """

    kind: str = "full"
    page: int = 1
    tokens: int = 256
    window: int = 16
    window_tokens: int = 192
    states: int = 6
    policy: str = "lru"
    bigrams: bool = False


@dataclass(frozen=True)
class Ask:
    """A request.

    Attributes:
        ids: its tokens.
        extra_key: the namespace of its prefix.
        priority: of what is inserted.
        stays: whether it keeps its lock until it is ended.
        behind: pages whose windows have been freed when it is inserted.
    """

    ids: tuple[int, ...]
    extra_key: str | None = None
    priority: int = 0
    stays: bool = False
    behind: int = 0


class PrefixTree:
    """One cache.

    Attributes:
        shape: see `Shape`.
        cache: the real ``UnifiedRadixCache``, with the core in Python.
        kv: the real allocator.
        evicted: the KV slots of each leaf that was evicted, in order.
    """

    def __init__(self, shape: Shape) -> None:
        """Build everything; the process must have published a server (`prepare`)."""
        self.shape = shape
        self.evicted: list[list[int]] = []
        self._held: list[tuple[Any, Any]] = []
        rows, self.kv = _pools(shape)
        self._states: Any = getattr(rows, "mamba_allocator", None) or getattr(
            rows, "mamba_pool", None
        )
        self._bases = importlib.import_module(f"{MEMORY}.base_prefix_cache")
        self._keys = importlib.import_module(f"{MEMORY}.radix_cache")
        params = cache_params(
            rows,
            self.kv,
            shape.page,
            disable=False,
            is_eagle=shape.bigrams,
            eviction_policy=shape.policy,
            sliding_window_size=shape.window if shape.kind == "window" else None,
            enable_mamba_extra_buffer=shape.page > 1,
            tree_core_backend="python",
        )
        self.cache = unified_cache(params, "FULL", *_BESIDE[shape.kind])
        self._watch()

    @property
    def core(self) -> Any:
        """The tree."""
        return self.cache.tree_core

    def request(self, ask: Ask) -> tuple[Any, ...]:
        """Serve a request; what it found and got. It is turned away where there is no room."""
        key = self._key(ask)
        length = len(key.maybe_to_bigram_view(self.core.is_eagle)[0])
        length -= length % self.shape.page
        if not length:
            return ("too short",)
        match = self._match(key)
        matched = self._slots_of(match)
        there = len(matched)
        lock = self._lock(match.last_device_node)
        fresh = self._slots(length - there)
        state = self._state() if self.shape.kind == "states" else None
        if fresh is None or (self.shape.kind == "states" and state is None):
            if fresh is not None:
                self._free(fresh)
            if state is not None:
                self._states.free(state)
            self._unlock(lock)
            return ("no room", there)
        behind = self._free_behind(ask, fresh, there, length)
        inserted = self.cache.insert(self._insertion(ask, key, matched, fresh, state, behind))
        if state is not None and inserted.mamba_exist:
            self._states.free(state)
        self._unlock(lock)
        if ask.stays:
            self._held.append(self._lock(self._match(key).last_device_node))
        return ("served", there, inserted.prefix_len, fresh.tolist())

    def match(self, ask: Ask) -> tuple[Any, ...]:
        """Only look a prefix up, which makes it younger; the slots that are there."""
        return ("matched", self._slots_of(self._match(self._key(ask))).tolist())

    def end(self, number: int) -> tuple[Any, ...]:
        """End one of the requests that stay."""
        if not self._held:
            return ("none stays",)
        self._unlock(self._held.pop(number % len(self._held)))
        return ("ended", len(self._held))

    def evict(self, tokens: int, windowed: int = 0, states: int = 0) -> tuple[Any, ...]:
        """Evict so much of each."""
        kind = self.shape.kind
        params = self._bases.EvictParams(
            num_tokens=tokens,
            swa_num_tokens=windowed if kind == "window" else 0,
            mamba_num=states if kind == "states" else 0,
        )
        done = self.cache.evict(params)
        counts = done.num_tokens_evicted, done.swa_num_tokens_evicted, done.mamba_num_evicted
        return ("evicted", *counts)

    def flush(self) -> tuple[Any, ...]:
        """Empty the cache, as an idle server does that is told to."""
        while self._held:
            self._unlock(self._held.pop())
        self.cache.reset()
        self.kv.clear()
        if self._states is not None:
            self._states.clear()
        return ("flushed",)

    def told(self) -> tuple[Any, ...]:
        """What there is: free and evictable, of each kind, and what was evicted since last asked.

        Raises:
            Different: two leaves share a place in stock's order.
            AssertionError: stock's own check of the tree.
        """
        self.cache.sanity_check()
        order = self.core.eviction_strategy.get_priority
        leaves = self.core.evictable_device_leaves
        require(
            len({(order(node), node.last_access_time) for node in leaves}) == len(leaves),
            "two leaves share a place in stock's order",
        )
        evicted, self.evicted[:] = list(self.evicted), ()
        free = self._states.available_size() if self._states is not None else 0
        return (
            *(evicted, self._available(), free, len(leaves)),
            *(self.cache.evictable_size(), self.cache.protected_size()),
        )

    # -- the release's own calls ----------------------------------------------------------------

    def _key(self, ask: Ask) -> Any:
        return self._keys.RadixKey(array("q", ask.ids), ask.extra_key)

    def _match(self, key: Any) -> Any:
        return self.cache.match_prefix(self._bases.MatchPrefixParams(key=key))

    def _slots_of(self, match: Any) -> Any:
        """The KV slots of what was matched; from 0.5.22 on stock gives their number alone."""
        node, slots = self.core.node_by_id(match.last_device_node), []
        while node is not self.core.root_node:
            slots.append(node.component_data[0].value.to(torch.int64))
            node = node.parent
        return torch.cat(slots[::-1]) if slots else torch.empty(0, dtype=torch.int64)

    def _lock(self, node: Any) -> tuple[Any, Any]:
        return node, self.cache.inc_lock_ref(node).to_dec_params()

    def _unlock(self, lock: tuple[Any, Any]) -> None:
        self.cache.dec_lock_ref(*lock)

    def _insertion(
        self, ask: Ask, key: Any, matched: Any, fresh: Any, state: Any, behind: int
    ) -> Any:
        params = called(
            self._bases.InsertParams,
            key=key,
            value=torch.cat([matched, fresh.to(torch.int64)]),
            prev_prefix_len=len(matched),
            mamba_value=state,
            swa_evicted_seqlen=behind,
            priority=ask.priority,
        )
        if behind and hasattr(params, "set_evicted_seqlen"):
            params.set_evicted_seqlen(component_module().ComponentType.SWA, behind)
        return params

    def _slots(self, tokens: int) -> Any:
        """So many slots, after an eviction where they are short; None if there is no room."""
        if not tokens:
            return torch.empty(0, dtype=torch.int64)
        full, swa = self._available()
        if self.shape.kind != "window":
            if full < tokens:
                self.evict(tokens - full)
            return self.kv.alloc(tokens)
        if full < tokens or swa < tokens:
            self.evict(max(0, tokens - full), max(0, tokens - swa))
        if min(self._available()) < tokens:
            return None
        fresh = self.kv.full_attn_allocator.alloc(tokens)
        self.kv.set_full_to_swa_mapping(fresh, self.kv.swa_attn_allocator.alloc(tokens))
        return fresh

    def _state(self) -> Any:
        if self._states.available_size() < 1:
            self.evict(0, 0, 1)
        return self._states.alloc(1)

    def _free(self, slots: Any) -> None:
        if len(slots):
            self.kv.free(slots)

    def _free_behind(self, ask: Ask, fresh: Any, there: int, length: int) -> int:
        """Free windows of the first fresh tokens; the length up to which none are left."""
        if self.shape.kind != "window":
            return 0
        most = length - there - self.shape.window
        pages = min(ask.behind, max(0, most) // self.shape.page)
        if not pages:
            return 0
        tokens = pages * self.shape.page
        self.kv.free_swa(fresh[:tokens])
        return there + tokens

    def _available(self) -> tuple[int, int]:
        if self.shape.kind != "window":
            return int(self.kv.available_size()), 0
        return int(self.kv.full_available_size()), int(self.kv.swa_available_size())

    def _watch(self) -> None:
        """Keep the slots of each leaf that the cache evicts."""
        stock = self.cache._evict_device_leaf

        def evict(node_id: Any, tracker: Any) -> Any:
            self.evicted.append(self.core.node_by_id(node_id).component_data[0].value.tolist())
            return stock(node_id, tracker)

        self.cache._evict_device_leaf = evict


def prepare() -> None:
    """Publish the server that the caches are of, and import what the patch waits for."""
    importlib.import_module(f"{MEMORY}.unified_radix_cache")
    publish()._mamba_cache_chunk_size = STATES_CHUNK


def _pools(shape: Shape) -> tuple[Any, Any]:
    """The pool of rows, and the allocator of KV."""
    if shape.kind == "states":
        tracked = shape.page > 1
        rows = bare_state_pool(StatesShape("unified", tracked=tracked, slots=shape.states))
    else:
        rows = called(
            importlib.import_module(f"{MEMORY}.memory_pool").ReqToTokenPool,
            size=8,
            max_context_len=4096,
            device="cpu",
            enable_memory_saver=False,
        )
    if shape.kind == "window":
        window = WindowShape(
            window=shape.window,
            page_size=shape.page,
            swa_tokens=shape.window_tokens,
            full_tokens=shape.tokens,
            context=4096,
        )
        return rows, window_pools(window, "auto")[1]
    return rows, kv_allocator(shape.page, shape.tokens)
