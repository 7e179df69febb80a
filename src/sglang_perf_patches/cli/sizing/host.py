"""``doctor --model`` for a hybrid model's hierarchical cache: how host memory is divided.

Stock divides it between states and KV as on the device. ``mamba.host-states`` divides it in the
proportion that prefixes of a given length need.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...model.errors import OperatorError
from ...sets.mamba import host_split
from ...sets.mamba.host_split import Pools
from ...sets.mamba.host_states import PATCH
from ...sets.mamba.host_states.body import VARIABLE
from .. import render
from .server import Server
from .states import StateHint


@dataclass(frozen=True)
class HostLine:
    """A way to divide the host.

    Attributes:
        give: what an operator adds to the command; "" for stock.
        pools: the sizes of the pools.
        short: the number of prefixes that fit if replies are not cached.
        long: the number that fits if each reply is cached with a state of its own.
    """

    give: str
    pools: Pools
    short: int
    long: int


@dataclass(frozen=True)
class HostHint:
    """The ways to divide the memory that a flag gives the host; stock's way is first.

    The patch's ways follow if there is memory enough.
    """

    flag: str
    context: int
    lines: tuple[HostLine, ...]

    @property
    def text(self) -> str:
        """The hint in words."""
        rows = [
            ["HOST STATES", "HOST KV TOKENS", "PREFIXES", "WITH LONG REPLIES", "ADD TO THE COMMAND"]
        ]
        for line in self.lines:
            numbers = (line.pools.states, line.pools.tokens, line.short, line.long)
            rows.append([*(f"{number:,}" for number in numbers), line.give or "(stock)"])
        heading = (
            f"the host with {self.flag}, and stock's defaults on the device: prefixes of "
            f"{self.context:,} tokens each"
        )
        note = (
            "A long reply reaches --mamba-track-interval (256) tokens and leaves one more state. "
            "So does a prompt whose prefill is interrupted by others. Set "
            f"SGLANG_PERF_PATCHES=all,{PATCH.id} as well as the variable."
        )
        return "\n\n".join([render.filled(heading), render.table(rows), render.filled(note)])


def hint(server: Server, states: StateHint | None) -> HostHint | None:
    """How a release divides the host's memory; None if no option asks for it.

    Args:
        server: the options.
        states: how stock divides the device's memory; None for a model without states.

    Raises:
        OperatorError: the model or the release has no such division that is known.
    """
    ratio, gigabytes = server.hicache_ratio, server.hicache_size
    if not (ratio or gigabytes):
        return None
    if states is None or server.disable_radix_cache:
        raise OperatorError(
            "--hicache-size and --hicache-ratio need a hybrid model and a prefix cache"
        )
    if not any(states.release in variant.releases for variant in PATCH.variants):
        raise OperatorError(f"it is unknown how {states.release} divides the host's memory")
    cells, context, device = states.cells, states.load.context, states.lines[0].split
    on_device = Pools(device.slots, device.tokens)
    stock = host_split.stock(cells, on_device, ratio=ratio, gigabytes=gigabytes)
    # Stock caches the states of each prefill chunk, and of a reply that has at least as many tokens
    # as there are between two tracked states.
    few = -(-context // server.chunked_prefill_size)
    more = few + 1

    def line(give: str, pools: Pools) -> HostLine:
        return HostLine(give, pools, pools.prefixes(context, few), pools.prefixes(context, more))

    lines = [line("", stock)]
    for each in (few, more):
        tokens = max(1, context // each)
        total = int(gigabytes * host_split.GIGABYTE) or stock.bytes(cells)
        pools = host_split.divided(cells, total, on_device, tokens)
        if pools is not None:
            lines.append(line(f"{VARIABLE}={tokens}", pools))
    flag = f"--hicache-size {gigabytes:g}" if gigabytes else f"--hicache-ratio {ratio:g}"
    return HostHint(flag, context, tuple(lines))
