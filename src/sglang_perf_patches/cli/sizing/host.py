"""What ``doctor --model`` says of a hybrid model's hierarchical cache: how it divides the host.

Stock gives the host's pools the proportion of the device's; ``mamba.host-states`` gives them the
one in which prefixes of a length need states and KV.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...sets.mamba import host_split
from ...sets.mamba.host_split import Cells, Pools
from ...sets.mamba.host_states import PATCH
from .. import render
from .split import Split

VARIABLE = "SGLANG_PERF_PATCHES_TOKENS_PER_STATE"


@dataclass(frozen=True)
class Host:
    """What an operator gives the host: one of both.

    Attributes:
        ratio: ``--hicache-ratio``, or 0.
        gigabytes: ``--hicache-size``, or 0.
    """

    ratio: float
    gigabytes: float

    @property
    def given(self) -> str:
        """The flag."""
        size = f"--hicache-size {self.gigabytes:g}"
        return size if self.gigabytes else f"--hicache-ratio {self.ratio:g}"


@dataclass(frozen=True)
class HostLine:
    """A way to divide the host.

    Attributes:
        give: what an operator adds; empty for stock.
        pools: what they hold.
        short: prefixes that fit where no reply is cached.
        long: the same where each reply is, with a state of its own.
    """

    give: str
    pools: Pools
    short: int
    long: int


@dataclass(frozen=True)
class HostHint:
    """What each way makes of the host's memory.

    Attributes:
        host: what is given.
        context: tokens of a prefix.
        lines: the first is stock's; the others are the patch's, where the release has it.
    """

    host: Host
    context: int
    lines: tuple[HostLine, ...]

    @property
    def text(self) -> str:
        """For an operator."""
        rows = [["HOST STATES", "HOST KV TOKENS", "PREFIXES", "WITH LONG REPLIES", "GIVE"]]
        for line in self.lines:
            numbers = (line.pools.states, line.pools.tokens, line.short, line.long)
            rows.append([*(f"{number:,}" for number in numbers), line.give or "(stock)"])
        heading = (
            f"the host with {self.host.given}, beside stock's defaults on the device: prefixes of "
            f"{self.context:,} tokens that fit"
        )
        note = (
            "A reply is long that reaches --mamba-track-interval (256): it leaves one more state. "
            "So does a prompt that is cut by others in its prefill. Give "
            f"SGLANG_PERF_PATCHES=all,{PATCH.id} as well as the variable."
        )
        return "\n\n".join([render.filled(heading), render.table(rows), render.filled(note)])


def hint(
    release: str, cells: Cells, device: Split, host: Host, *, context: int, chunk: int
) -> HostHint | None:
    """What the release makes of the host's memory; None where its rule is not known.

    Args:
        release: of the server.
        cells: of the model.
        device: what stock makes of the device's memory.
        host: what is given.
        context: tokens of a prefix.
        chunk: most tokens of a prefill.
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
