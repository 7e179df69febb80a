"""``swa.eviction-heap``: evictions share a heap of leaves, where stock makes one for each.

Stock's own walk pops the leaves, pushes their parents and frees them. It is only given another heap
to pop from, which brings up one leaf at a time (`leaves.Walk`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..references import FULL_COMPONENT, OLD_FULL_COMPONENT, TREE
from .leaves import Leaves, Walk

if TYPE_CHECKING:
    from ....model.patching import Patching

POLICIES = "sglang.srt.mem_cache.evict_policy"
COMPONENTS = "sglang.srt.mem_cache.unified_cache.components"

_RISING = (
    *("LRUStrategy", "LFUStrategy", "FIFOStrategy", "FILOStrategy"),
    *("PriorityStrategy", "SLRUStrategy"),
)
"""Stock's orders in which a leaf only rises. With MRU each use lowers it."""


def install_in_old_component(patching: Patching) -> None:
    """Up to 0.5.19."""
    _install(patching, OLD_FULL_COMPONENT)


def install(patching: Patching) -> None:
    """From 0.5.20 on."""
    _install(patching, FULL_COMPONENT)


def _install(patching: Patching, component: str) -> None:
    patching.anytime("a walk that has begun ends on its own heap, and the next one is stock's")
    serves = _serving(patching)
    kept: WeakKeyDictionary[Any, Leaves] = WeakKeyDictionary()

    def updates(inner: Any) -> Any:
        def _update_evictable_leaf_sets(self: Any, node: Any) -> None:
            inner(self, node)
            leaves = kept.get(self)
            if leaves is None or node not in self.evictable_device_leaves:
                return
            if not leaves.note(self, node):
                del kept[self]

        return _update_evictable_leaf_sets

    def starts(inner: Any) -> Any:
        def _evict_device_start(self: Any, request_cnt: int) -> None:
            core = self.tree_core
            if not serves(self):
                inner(self, request_cnt)
                return
            patching.ran.seen = True
            # Stock's own beginning, of a tree without leaves.
            all_leaves, core.evictable_device_leaves = core.evictable_device_leaves, set()
            try:
                inner(self, request_cnt)
            finally:
                core.evictable_device_leaves = all_leaves
            priority = self.session_ref_eviction_strategy
            leaves = kept.get(core)
            if leaves is None:
                leaves = kept[core] = Leaves(core, priority)
            leaves.take_noted(core, priority)
            self._evict_device_heap = Walk(leaves, core, priority)

        return _evict_device_start

    patching.override(f"{TREE}._update_evictable_leaf_sets", updates)
    patching.override(f"{component}._evict_device_start", starts)


def _serving(patching: Patching) -> Any:
    """Whether a component's tree is one of stock's own, in an order in which leaves only rise."""
    policies, parts = patching.module(POLICIES), patching.module(COMPONENTS)
    rising = {getattr(policies, name) for name in _RISING}
    known = {parts.FullComponent, parts.SWAComponent, parts.MambaComponent}
    tree = patching.get(TREE)

    def serves(component: Any) -> bool:
        core = component.tree_core
        return (
            type(core) is tree
            and type(core.eviction_strategy) in rising
            and not core.enable_session_radix_cache
            and all(type(each) in known for each in core.components)
        )

    return serves
