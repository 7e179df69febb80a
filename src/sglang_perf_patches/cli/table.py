"""The table of patches that `list`, `explain` and `doctor` print: the state of each, best first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..model.selection import TROUBLE
from . import patch_page, render

READY, LIVE, OFF, OPT_IN = "ready", "live", "off (not chosen)", "off (opt-in)"
_FIRST = (LIVE, READY, "gated", "refused", "off", OFF, OPT_IN)
COLOURS = {
    **dict.fromkeys((LIVE, READY), "green"),
    **dict.fromkeys(TROUBLE, "red"),
    **dict.fromkeys((OFF, OPT_IN, "gated"), "yellow"),
}


def of_patches(
    rows: Iterable[tuple[str, str, Sequence[str]]],
    *headings: str,
    where: str = "HERE",
    with_cost: bool = True,
) -> str:
    """A table of patches, sorted by state and then by gain.

    Args:
        rows: for each patch its id, its state, and a cell for each of `headings`.
        headings: the columns after gain and cost.
        where: the heading of the column of states.
        with_cost: whether to show the costs.
    """
    lines = [["PATCH", where, "GAIN", *["COST"] * with_cost, *headings]]
    colours = {}
    for patch, state, more in sorted(rows, key=lambda row: _place(*row[:2])):
        short = patch_page.read(patch).short
        word = f"{state}, if you use {short.uses}" if short and state == READY else state
        colours[word] = COLOURS.get(state, "")
        gain, cost = (short.gain, short.cost) if short else ("-", "-")
        lines.append([patch, word, gain, *[cost] * with_cost, *more])
    return render.table(lines, column=1, colours=colours, below=len(lines[0]) - 2)


def _place(patch: str, state: str) -> tuple[int, float]:
    short = patch_page.read(patch).short
    at = _FIRST.index(state) if state in _FIRST else len(_FIRST)
    return at, short.ratio if short else 1.0
