"""The patches as `list`, `explain` and `doctor` print them: by set, the largest gain first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from .. import sets
from ..model.patch import Patch, by_id
from ..model.selection import TROUBLE
from . import patch_page, render, works_with

READY, LIVE, OFF, OPT_IN = "ready", "live", "off (not chosen)", "off (opt-in)"
COLOURS = {
    **dict.fromkeys((LIVE, READY), "green"),
    **dict.fromkeys(TROUBLE, "red"),
    **dict.fromkeys((OFF, OPT_IN, "gated"), "yellow"),
}
_MEASURED = re.compile(r"\(([\d.]+(?:post\d+)?), [^()]*\)$")

Row = tuple[str, str, Sequence[str]]
"""A patch's id, its state, and what else there is to say."""


def of_patches(rows: Iterable[Row], release: str, *, with_cost: bool = True) -> str:
    """The patches below a heading for each set.

    Args:
        rows: the patches.
        release: the sglang they are for; a gain that was measured on another one says so.
        with_cost: whether to show the costs, and what each patch works with.
    """
    summaries = {one.name: one.summary for one in sets.load()}
    patches = {one.id: _of(one, release) for one in by_id(sets.load()).values()}
    order = list(summaries)
    placed = sorted(rows, key=lambda row: (order.index(patches[row[0]].set), _ratio(row[0])))
    parts = []
    for name, members in groupby(placed, key=lambda row: patches[row[0]].set):
        entries = (_entry(patches, row, release, with_cost=with_cost) for row in members)
        parts.append("\n".join([render.filled(f"{name}: {summaries[name]}", "", "  "), *entries]))
    return "\n\n".join(parts)


def _of(patch: Patch, release: str) -> Patch:
    """The patch with what it was tested with on a release."""
    there = (variant for variant in patch.variants if release in variant.releases)
    return patch.proven_in(next(there, None))


def _features(patch: Patch, patches: Mapping[str, Patch]) -> str:
    """``works with TP; off with EP, …``; "" if it runs on MLX, which has none of them."""
    if "mlx" in patch.only_with:
        return ""
    works = works_with.works_with(patches, patch.id)
    off = [word for word in works_with.WORDS if word not in works]
    return f"works with {', '.join(works)}" + (f"; off with {', '.join(off)}" if off else "")


def _entry(patches: Mapping[str, Patch], row: Row, release: str, *, with_cost: bool) -> str:
    name, state, more = row
    short = patch_page.read(name).short
    lines = [f"{name}: {state}"]
    if short:
        if state in (READY, LIVE):
            lines[0] += f", if you use {short.uses}"
        measured = _MEASURED.search(short.gain)
        elsewhere = f"; not on {release})" if measured and measured[1] != release else ""
        lines.append(short.gain.removesuffix(")") + elsewhere if elsewhere else short.gain)
        if with_cost:
            lines += [f"costs: {short.cost}", _features(patches[name], patches)]
    heading, *others = [*lines, *more]
    painted = f": {render.paint(state, COLOURS.get(state, ''))}"
    return "\n".join(
        [
            render.filled(heading, "  ", " " * 6).replace(f": {state}", painted, 1),
            *(render.filled(each, " " * 6) for each in others if each),
        ]
    )


def _ratio(patch: str) -> float:
    short = patch_page.read(patch).short
    return short.ratio if short else 1.0
