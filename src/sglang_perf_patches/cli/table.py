"""The patches as `list`, `explain` and `doctor` print them: by set.

In a set, what prevents a fault here is first, and then the largest gain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .. import patch_page, sets
from ..compat.verdict import Verdict
from ..model.patch import Patch
from ..patch_page import WORDS, Headline, works_with
from . import render

READY, LIVE, OFF, OPT_IN = "ready", "live", "off (not chosen)", "off (opt-in)"
Row = tuple[str, str, Sequence[str]]
"""A patch's id, its state, and what else there is to say."""


def of_patches(
    rows: Sequence[Row],
    judged: Iterable[Verdict],
    release: str,
    headlines: Mapping[str, Headline | None] | None = None,
) -> str:
    """The patches of `rows` below a heading for each set; `judged` has the verdict on every patch.

    A gain that was not measured on `release` says so. `headlines` has a row of the page for each
    patch; None is the row for `release`.
    """
    by_id = {one.patch.id: one.patch.proven_in(one.variant) for one in judged}
    if headlines is None:
        headlines = {row[0]: patch_page.read(row[0]).headline(release) for row in rows}

    def place(row: Row) -> tuple[bool, float]:
        worth, headline = by_id[row[0]].worth, headlines[row[0]]
        prevents = row[1] in (READY, LIVE) and worth is not None and worth.rule == "b"
        return not prevents, headline.ratio if headline else 1.0

    parts = []
    for one in sets.load():
        members = sorted((row for row in rows if by_id[row[0]].set == one.name), key=place)
        entries = [_entry(by_id, row, headlines[row[0]], release) for row in members]
        if entries:
            heading = render.filled(f"{one.name}: {one.summary}", "", "  ")
            parts.append("\n".join([heading, *entries]))
    return "\n\n".join(parts)


def _features(patch: Patch, patches: Mapping[str, Patch]) -> str:
    """``works with TP; off with EP, …``; "" if it runs on MLX, which has none of them."""
    if "mlx" in patch.only_with:
        return ""
    works = works_with(patches, patch.id)
    off = [word for word in WORDS if word not in works]
    return f"works with {', '.join(works)}" + (f"; off with {', '.join(off)}" if off else "")


def _entry(patches: Mapping[str, Patch], row: Row, headline: Headline | None, release: str) -> str:
    name, state, more = row
    lines = [f"{name}: {state}"]
    if headline:
        if state == READY:
            lines[0] += f", if you use {headline.uses}"
        elif state == LIVE:
            lines[0] += f" (for {headline.uses})"
        elsewhere = f"; not measured on {release})" if headline.release not in ("", release) else ""
        lines.append(headline.gain.removesuffix(")") + elsewhere if elsewhere else headline.gain)
        lines += [f"costs: {headline.cost}", _features(patches[name], patches)]
    heading, *others = [*lines, *more]
    first = render.filled(heading, "  ", " " * 6)
    return "\n".join([first, *(render.filled(each, " " * 6) for each in others if each)])
