"""``doctor --model`` for a hybrid model's hierarchical cache: how host memory is divided.

Stock divides it between states and KV as on the device. ``mamba.host-states`` divides it in the
proportion that prefixes of a given length need.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...sets.mamba import host_split
from ...sets.mamba.host_split import Cells, Pools
from ...sets.mamba.host_states import PATCH
from ...sets.mamba.host_states.body import VARIABLE
from .. import render
from .split import Split


@dataclass(frozen=True)
class Host:
    """The host memory that an operator gives, by one of two flags.

    Attributes:
        ratio: ``--hicache-ratio``, or 0.
        gigabytes: ``--hicache-size``, or 0.
    """

    ratio: float
    gigabytes: float

    @property
    def given(self) -> str:
        """The flag with its value."""
        size = f"--hicache-size {self.gigabytes:g}"
        return size if self.gigabytes else f"--hicache-ratio {self.ratio:g}"


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
    """The ways to divide the host's memory.

    Attributes:
        host: the host memory.
        context: tokens of a prefix.
        lines: stock's way first; then the patch's, if it applies to the release.
    """

    host: Host
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
            f"the host with {self.host.given}, and stock's defaults on the device: prefixes of "
            f"{self.context:,} tokens each"
        )
        note = (
            "A long reply reaches --mamba-track-interval (256) tokens and leaves one more state. "
            "So does a prompt whose prefill is interrupted by others. Set "
            f"SGLANG_PERF_PATCHES=all,{PATCH.id} as well as the variable."
        )
        return "\n\n".join([render.filled(heading), render.table(rows), render.filled(note)])


def hint(
    release: str, cells: Cells, device: Split, host: Host, *, context: int, chunk: int
) -> HostHint | None:
    """How a release divides the host's memory; None if its rule is unknown.

    Args:
        release: the server's release.
        cells: the model's sizes.
        device: how stock divides the device's memory.
        host: the host memory.
        context: tokens of a prefix.
        chunk: the maximum tokens of a prefill.
    """
    if not any(release in variant.releases for variant in PATCH.variants):
        return None
    on_device = Pools(device.slots, device.tokens)
    stock = host_split.stock(cells, on_device, ratio=host.ratio, gigabytes=host.gigabytes)
    few, more = (
        host_split.states_of(context, chunk, reply_is_cached=cached) for cached in (False, True)
    )

    def line(give: str, pools: Pools) -> HostLine:
        return HostLine(give, pools, pools.prefixes(context, few), pools.prefixes(context, more))

    lines = [line("", stock)]
    for states in (few, more):
        tokens = max(1, context // states)
        total = int(host.gigabytes * host_split.GIGABYTE) or stock.bytes(cells)
        pools = host_split.divided(cells, total, on_device, tokens)
        if pools is not None:
            lines.append(line(f"{VARIABLE}={tokens}", pools))
    return HostHint(host, context, tuple(lines))
