"""``doctor --model`` for a hybrid model: how its memory is split, and the options that change it.

The release's source tells which options it has, and what ``auto`` means for a model. The texts
about costs were written from reading that source too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...compat.source import Tree
from ...sets.mamba.host_split import Cells
from .. import render
from ..verbs import text_of
from .split import Load, Split, fitted, stock, stock_without_cache

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


@dataclass(frozen=True)
class Way:
    """A way to set a server up.

    Attributes:
        give: what an operator adds to the command; "" for stock's defaults.
        slots_each: slots that a request then reserves.
        costs: what it costs, in words.
    """

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
    """The ways to split a model's memory.

    Attributes:
        release: the release.
        cells: the model's sizes.
        load: the load that the server must hold.
        lines: stock's default first; the others hold at least one request.
        costs: the texts about those ways.
    """

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
            split = line.split
            numbers = (line.slots_each, split.slots, split.tokens, split.in_flight)
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


def hint(
    tree: Tree,
    architecture: str,
    cells: Cells,
    load: Load,
    available: int,
    *,
    prefix_cache: bool = True,
) -> StateHint:
    """How each way splits the memory of one GPU.

    Args:
        tree: the release.
        architecture: the model's.
        cells: the model's sizes.
        load: the load that the server must hold.
        available: bytes for states and KV.
        prefix_cache: whether the radix cache is on; without it there is only one way.

    Raises:
        TreeError: a file of the tree can't be read.
    """
    choices = ways(tree, architecture)
    if prefix_cache:
        each = choices[0].slots_each
        pads = "max_mamba_cache_size + 1)" in text_of(tree, _CONFIGURATOR)
        plain = stock(cells, load, available=available, slots_each=each, pads=pads)
    else:
        choices = choices[-1:]
        plain = stock_without_cache(cells, load, available=available)
    lines = [Line(choices[0].give, choices[0].slots_each, plain)]
    for way in choices:
        split = fitted(cells, load, available=available, slots_each=way.slots_each)
        if not split.in_flight:
            continue
        give = f"{way.give} --max-mamba-cache-size {split.slots}".strip()
        lines.append(Line(give, way.slots_each, split))
    costs = dict.fromkeys(cost for way in choices for cost in way.costs) if prefix_cache else ()
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
