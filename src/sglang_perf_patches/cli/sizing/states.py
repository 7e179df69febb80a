"""``doctor --model`` for a hybrid model: how its memory is split, and the options that change it.

The release's source tells which options it has, and what ``auto`` means for a model. The texts
about costs were written from reading that source too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from ...compat.source import Tree
from ...model.errors import OperatorError
from ...sets.mamba.host_split import Cells
from .. import render
from ..verbs import text_of
from .server import Server
from .split import Load, Split, fitted, split, stock

_ENVIRON = "sglang.srt.environ"
_ARGUMENTS = (
    "sglang.srt.server_args",
    "sglang.srt.arg_groups.fields.exec_",
    "sglang.srt.arg_groups.overrides",
)
_CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator"
_SKIPS = "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"
_TRACKED = re.compile(
    r"_MAMBA_EXTRA_BUFFER_ARCHS = frozenset\((.*?)\n\)"
    r"|def _support_mamba_cache_extra_buffer\(self, model_arch: str\):"
    r"\s+if model_arch in \[(.*?)\]",
    re.DOTALL,
)

_OF_SKIP = (
    f"{_SKIPS}: the cached state of a running request may be evicted; then a later turn finds a "
    "shorter prefix"
)
_OF_LAZY = "extra_buffer_lazy: not for disaggregated servers"
_OF_NO_BUFFER = (
    "no_buffer: no overlap of scheduling and forward passes, page size 1, and states are cached "
    "only at the end of a prefill"
)
_OF_NO_CACHE = "--disable-radix-cache: no prefix is reused"


class Way(NamedTuple):
    """What an operator adds to the command, the slots of a request then, and what it costs."""

    give: str
    slots_each: int
    costs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """A way, and how it splits the memory."""

    give: str
    slots_each: int
    split: Split


@dataclass(frozen=True)
class StateHint:
    """How a release can split a model's memory, and what that costs; stock's default is first."""

    release: str
    cells: Cells
    load: Load
    lines: tuple[Line, ...]
    costs: tuple[str, ...]

    @property
    def text(self) -> str:
        """The hint in words."""
        load, cells = self.load, self.cells
        rows = [["SLOTS A REQUEST", "STATE SLOTS", "KV TOKENS", "IN FLIGHT", "ADD TO THE COMMAND"]]
        for line in self.lines:
            each = line.split
            numbers = (line.slots_each, each.slots, each.tokens, each.in_flight)
            rows.append([*(f"{number:,}" for number in numbers), line.give or "(stock's defaults)"])
        heading = (
            f"states and KV with sglang {self.release}: {load.requests:,} requests of "
            f"{load.context:,} tokens, {cells.state / 2**20:.1f} MiB a state, {cells.token:,} "
            "bytes a token"
        )
        note = (
            f"Add --max-running-requests {load.requests} as well. Not for speculative decoding, "
            "which keeps more states."
        )
        costs = [render.filled(f"costs: {cost}", "", "  ") for cost in self.costs]
        return "\n\n".join([render.filled(heading), render.table(rows), "\n".join([note, *costs])])


def hint(tree: Tree, architecture: str, cells: Cells, load: Load, server: Server) -> StateHint:
    """How each way splits the memory of one GPU.

    Raises:
        TreeError: a file of the tree can't be read.
        OperatorError: no request fits.
    """
    available, choices = server.available, ways(tree, architecture)
    if server.disable_radix_cache:
        choices = choices[-1:]
        plain = split(cells, load, available, load.requests, 1)
    else:
        each = choices[0].slots_each
        pads = "max_mamba_cache_size + 1)" in text_of(tree, _CONFIGURATOR)
        plain = stock(cells, load, available=available, slots_each=each, pads=pads)
    lines = [Line(choices[0].give, choices[0].slots_each, plain)]
    for way in choices:
        best = fitted(cells, load, available=available, slots_each=way.slots_each)
        if best.in_flight:
            give = f"{way.give} --max-mamba-cache-size {best.slots}".strip()
            lines.append(Line(give, way.slots_each, best))
    if len(lines) < 2:
        raise OperatorError(f"{server.kv_gib:g} GiB hold no request of {load.context} tokens")
    costs = dict.fromkeys(cost for way in choices for cost in way.costs)
    return StateHint(tree.version, cells, load, tuple(lines), tuple(costs))


def ways(tree: Tree, architecture: str) -> list[Way]:
    """The ways to set up a server of a release for a model.

    The first is its default, the last has no prefix cache.

    Raises:
        TreeError: a file of the tree can't be read.
    """
    arguments = text_of(tree, *_ARGUMENTS)
    match = _TRACKED.search(arguments)
    tracked = match is not None and f'"{architecture}"' in match[0]
    skips = f"{_SKIPS} = EnvBool(False)" in text_of(tree, _ENVIRON)
    lazy = "--mamba-radix-cache-strategy extra_buffer_lazy"
    all_ways = [Way("", 5 if tracked else 3)]
    if tracked:
        has_lazy = '"extra_buffer_lazy"' in arguments
        if skips:
            all_ways.append(Way(f"{_SKIPS}=1", 4, (_OF_SKIP,)))
        if has_lazy:
            all_ways.append(Way(lazy, 4, (_OF_LAZY,)))
        if skips and has_lazy:
            all_ways.append(Way(f"{_SKIPS}=1 {lazy}", 3, (_OF_SKIP, _OF_LAZY)))
        without = "--mamba-radix-cache-strategy no_buffer --disable-overlap-schedule"
        all_ways.append(Way(without, 3, (_OF_NO_BUFFER,)))
    all_ways.append(Way("--disable-radix-cache", 1, (_OF_NO_CACHE,)))
    return all_ways
