"""The patches as `list` and `explain` print them: by set.

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
_NO_COST = "none known"


def entry(heading: str, *lines: str) -> str:
    """A heading and what belongs to it, wrapped and indented; empty lines are left out."""
    first = render.filled(heading, "  ", " " * 6)
    return "\n".join([first, *(render.filled(each, " " * 6) for each in lines if each)])


def cost(headline: Headline | None) -> str:
    """What a patch costs; "" if no cost is known."""
    return f"costs: {headline.cost}" if headline and headline.cost != _NO_COST else ""


def prevents(patch: Patch) -> bool:
    """Whether a patch is on by default because it prevents a fault."""
    return patch.worth is not None and patch.worth.rule == "b"


def of_patches(
    rows: Sequence[Row], judged: Iterable[Verdict], release: str, *, with_costs: bool = True
) -> str:
    """The patches of `rows` below a heading for each set; `judged` has the verdict on every patch.

    A gain that was not measured on `release` says so.
    """
    by_id = {one.patch.id: one.patch.proven_in(one.variant) for one in judged}
    headlines = {row[0]: patch_page.read(row[0]).headline(release) for row in rows}

    def place(row: Row) -> tuple[bool, float]:
        headline = headlines[row[0]]
        is_first = row[1] in (READY, LIVE) and prevents(by_id[row[0]])
        return not is_first, headline.ratio if headline else 1.0

    parts = []
    for one in sets.load():
        members = sorted((row for row in rows if by_id[row[0]].set == one.name), key=place)
        entries = []
        for name, state, more in members:
            headline = headlines[name]
            use = f", if you use {headline.uses}" if headline and state == READY else ""
            costs = cost(headline) if with_costs else ""
            entries.append(entry(f"{name}: {state}{use}", gain(headline, release), costs, *more))
        if entries:
            heading = render.filled(f"{one.name}: {one.summary}", "", "  ")
            parts.append("\n".join([heading, *entries]))
    return "\n\n".join(parts)


def gain(headline: Headline | None, release: str) -> str:
    """The gain of a patch, and whether it was measured on another release; "" without one."""
    if headline is None or headline.release in ("", release):
        return headline.gain if headline else ""
    return f"{headline.gain.removesuffix(')')}; not measured on {release})"


def features(patch: Patch, patches: Mapping[str, Patch]) -> str:
    """``works with TP; off with EP, …``; "" if it runs on MLX, which has none of them."""
    if "mlx" in patch.only_with:
        return ""
    works = works_with(patches, patch.id)
    off = [word for word in WORDS if word not in works]
    return f"works with {', '.join(works)}" + (f"; off with {', '.join(off)}" if off else "")
