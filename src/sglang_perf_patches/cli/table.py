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
_NO_COST = "none known"

States = Mapping[str, tuple[str, str]]
"""Patch → the state that it will have, in a word, and what it does or why it is off."""


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
    shown: Sequence[Verdict],
    judged: Iterable[Verdict],
    states: States,
    release: str,
    *,
    with_costs: bool = True,
    with_all: bool = False,
) -> str:
    """The patches of `shown` below a heading for each set; a gain of another release says so.

    `judged` has the verdict on every patch. Reasons, features and links are shown only `with_all`.
    """
    by_id = {one.patch.id: one.patch.proven_in(one.variant) for one in judged}
    parts = []
    for one in sets.load():
        entries = []
        for patch in (by_id[each.patch.id] for each in shown if each.patch.set == one.name):
            (state, why), headline = states[patch.id], patch_page.read(patch.id).headline(release)
            use = f", if you use {headline.uses}" if headline and state == READY else ""
            lines = [gain(headline, release), cost(headline) if with_costs else ""]
            if with_all:
                links = ", ".join("#" + name.rpartition("#")[2] for name in patch.upstream)
                lines += [features(patch, by_id), why, f"upstream: {links}" if links else ""]
            is_first = state in (READY, LIVE) and prevents(patch)
            place = (not is_first, headline.ratio if headline else 1.0)
            entries.append((place, entry(f"{patch.id}: {state}{use}", *lines)))
        if entries:
            heading = render.filled(f"{one.name}: {one.summary}", "", "  ")
            in_order = sorted(entries, key=lambda each: each[0])
            parts.append("\n".join([heading, *(text for _, text in in_order)]))
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
