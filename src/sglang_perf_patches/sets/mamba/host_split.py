"""How the host's memory is divided between cached states and KV, and what of it can be used.

With the hierarchical cache, stock backs up the KV of each cached prefix and, one a node of the
radix cache, the state that its last token left. A request continues from the host only where both
are. Stock gives the host's pools the proportion of the device's, whose slots follow from how many
requests run at once. This gives them the proportion in which prefixes need them.
"""

from __future__ import annotations

from dataclasses import dataclass

GIGABYTE = 10**9
"""What ``--hicache-size`` counts in."""


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

    def prefixes(self, tokens: int, states: int) -> int:
        """How many prefixes of this many tokens and states fit, each with both."""
        return min(self.states // states, self.tokens // tokens)


def stock(cells: Cells, device: Pools, *, ratio: float = 0.0, gigabytes: float = 0.0) -> Pools:
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
