"""The leaves of a tree that may be evicted, in a heap that lives on from one eviction to the next.

A leaf's place in stock's order only rises while it is a leaf: whatever touches it makes it younger,
used more often, or more important. So an entry may be out of date, but never too late: an entry at
the top that is still true is the least of all.

Ids are never given twice, also not where stock empties a tree: what is of a node that is gone is
only skipped.

No two leaves share a place. Stock's clock counts on with each touch, and a match gives the nodes of
one path times that are 0.00001 apart, while two leaves are never on one path.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

SLACK = 64
"""How many entries more than twice the leaves a heap may have before it is made anew."""

Priority = Callable[[Any], Any]
"""Stock's own: what a node is compared by first, before the time at which it was last used."""

Entry = tuple[Any, float, int]
"""Priority, time of the last use, id. No node, which would hold its keys and KV indices."""


class Leaves:
    """A heap of the leaves of one ``UnifiedTreeCore``, which each call is given."""

    def __init__(self, core: Any, priority: Priority) -> None:
        """Take all leaves that there are; as much work as stock has at each eviction."""
        self._noted: set[int] = set()
        self._fill(core, priority)

    def note(self, core: Any, node: Any) -> bool:
        """Note a new leaf; False if there are so many that a new heap costs no more."""
        self._noted.add(node.id)
        return len(self._noted) <= len(core.evictable_device_leaves) + SLACK

    def take_noted(self, core: Any, priority: Priority) -> None:
        """Give each leaf that was noted its place."""
        leaves, nodes = core.evictable_device_leaves, core._node_arena
        for number in self._noted:
            node = nodes.get(number)
            if node in leaves:
                heappush(self._entries, _entry(node, priority))
        self._noted.clear()
        if len(self._entries) > 2 * len(leaves) + SLACK:
            self._fill(core, priority)

    def least(self, core: Any, priority: Priority) -> Any:
        """The leaf that stock would evict first; None if there is none."""
        leaves, nodes = core.evictable_device_leaves, core._node_arena
        while self._entries:
            entry = self._entries[0]
            node = nodes.get(entry[-1])
            if node not in leaves:
                heappop(self._entries)
                continue
            now = _entry(node, priority)
            if now == entry:
                return node
            heapreplace(self._entries, now)
        return None

    def lend_least(self) -> None:
        """Give away what `least` found, until the next eviction begins."""
        self._noted.add(heappop(self._entries)[-1])

    def _fill(self, core: Any, priority: Priority) -> None:
        self._entries = [_entry(node, priority) for node in core.evictable_device_leaves]
        heapify(self._entries)


class Walk(list[tuple[Any, Any]]):
    """The heap of one eviction, as stock pops from it and pushes parents onto it.

    Stock asks before each pop whether anything is left. The least leaf comes onto the heap then, if
    there is none before it.
    """

    def __init__(self, leaves: Leaves, core: Any, priority: Priority) -> None:
        """Begin with nothing on the heap.

        Args:
            leaves: of the tree, each in its place.
            core: the tree.
            priority: see `Priority`.
        """
        super().__init__()
        self._leaves, self._core, self._priority = leaves, core, priority

    def __bool__(self) -> bool:
        """Whether a leaf is left to pop; it is the first then."""
        node = self._leaves.least(self._core, self._priority)
        if node is not None:
            entry = self._priority(node), node
            if not len(self) or entry < self[0]:
                heappush(self, entry)
                self._leaves.lend_least()
        return len(self) > 0


def _entry(node: Any, priority: Priority) -> Entry:
    return priority(node), node.last_access_time, node.id
