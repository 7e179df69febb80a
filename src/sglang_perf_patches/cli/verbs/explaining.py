"""``explain``: a patch's page and what it changes; or the patches of a set."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ... import patch_page, sets
from ...compat import source
from ...compat.source import TreeError
from ...compat.verdict import Verdict
from ...model import setups
from ...model.errors import OperatorError
from ...model.patch import Patch, by_id
from ...model.releases import supported_until
from ...model.selection import Selection, members
from ...model.switch import is_off
from .. import markdown, render
from ..table import features, of_patches
from . import (
    add_json,
    add_tree,
    any_is_lost,
    judged,
    listing,
    names_of_patches,
    selected,
    tree_at,
)

PARSER: dict[str, Any] = {}
_FLAGS = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options: what to explain, on which tree, and in which form."""
    name: Any = parser.add_argument("patch", metavar="PATCH", help="a patch's name, or a set's")
    name.completer = names_of_patches
    add_tree(parser)
    parser.add_argument(
        "--all",
        action="store_true",
        help="also the features that a patch was tested with, and what it changes; of a set: costs",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the explanation; exit code 1 if the patch was chosen by name and is not available."""
    ids = _members(args.patch)
    selection = selected()
    is_here = args.sglang_path is None and args.sglang_version is None
    try:
        tree = tree_at(args.sglang_path, args.sglang_version)
    except TreeError as error:
        if is_here and not args.json:  # the reader may not have installed sglang yet
            patches = by_id(sets.load())
            render.warn(error)
            said = ("\n\n".join(_said(patches[name], show_all=args.all)) for name in ids)
            print("\n\n\n".join(said))
            return 2
        raise
    everything = judged(tree)
    verdicts = [verdict for verdict in everything if verdict.patch.id in ids]
    if args.json:
        data = [_data(tree, selection, verdict) for verdict in verdicts]
        is_set = args.patch not in ids
        print(json.dumps({"patches": data} if is_set else data[0], indent=2))
    elif args.patch in ids:
        words = {verdict.patch.id: verdict.word for verdict in everything}
        print(_text(tree, selection, verdicts[0], words, show_all=args.all))
    else:
        prospects = listing.prospects(selection, everything, is_here=is_here)
        idle = {"built-in", "absent"} if not args.all else {}
        shown = [one for one in verdicts if one.word not in idle]
        parts = [
            f"on sglang {tree.version}{_until(tree)}",
            of_patches(
                shown,
                everything,
                prospects,
                tree.version,
                with_all=args.all,
                with_costs=args.all,
            ),
            listing.only_named((one for one in verdicts if one not in shown), prospects),
            "Costs and features: add --all. A patch: sglang-perf-patches explain PATCH",
        ]
        print("\n\n".join(filter(None, parts)))
    return 1 if any_is_lost(selection, verdicts) else 0


def _members(name: str) -> list[str]:
    """The patch of that name, or the patches of that set; SelectionError if there is neither."""
    patches = by_id(sets.load())
    meant = members(name, patches, policies=True)
    return [patch_id for patch_id in patches if patch_id in meant]


def _until(tree: source.Tree) -> str:
    day = supported_until(tree.version)
    return day and f" (supported until {day})"


def _choice(selection: Selection, patch: Patch) -> str:
    """Whether the selection includes a patch, and how to change that."""
    text = f"SGLANG_PERF_PATCHES={selection.text}"
    if patch.id in selection.ids:
        off = f"SGLANG_PERF_PATCHES={selection.text},-{patch.id}"
        return f"Chosen by {text}. To turn it off: {off}"
    hint = "" if patch.is_default else ": an opt-in patch needs its full name"
    # After `none` and its like nothing can be added.
    before = "" if is_off(selection.text) else f"{selection.text},"
    return f"Not chosen by {text}{hint}. To turn it on: SGLANG_PERF_PATCHES={before}{patch.id}"


def _data(tree: source.Tree, selection: Selection, judged: Verdict) -> dict[str, Any]:
    patch = judged.patch
    written = patch_page.read(patch.id)._asdict()
    del written["headlines"]
    return {
        "sglang": {"version": tree.version, "path": str(tree.root)},
        **listing.verdict_data(selection, judged, tree.version),
        "summary": patch.summary,
        **written,
        "requires": list(patch.requires),
        "depends": list(judged.variant.depends) if judged.variant else [],
        "differences": [*_differences(tree, judged)],
    }


def _text(
    tree: source.Tree,
    selection: Selection,
    judged: Verdict,
    word: Mapping[str, str],
    *,
    show_all: bool,
) -> str:
    """The explanation of a patch; `word` has the verdict on each patch."""
    patch, variant = judged.patch, judged.variant
    note = variant.note if variant else ""
    first, *others = _said(patch.proven_in(variant), note, show_all=show_all)
    here = f"On sglang {tree.version}{_until(tree)}: {judged.word}: {judged.reason}."
    parts = [first, f"{render.filled(here)}\n{_choice(selection, patch)}", *others]
    if patch.requires:
        needs = (f"{name} ({word[name]} here)" for name in patch.requires)
        parts.append(f"Needs: {', '.join(needs)}")
    variant = variant or judged.closest
    if variant is not None and show_all:
        lines = [f"  {reference}" for reference in variant.targets + variant.adds]
        lines.append("What it relies on:")
        lines += [f"  {reference}" for reference in variant.depends]
        parts.append("\n".join(["What it changes:", *lines]))
    for each in _differences(tree, judged):
        title = f"{each['reference']}, from {judged.nearest} to this tree:"
        parts.append(f"{title}\n{each['diff']}")
    if not show_all:
        parts.append("The features that it was tested with, and the code: add --all")
    return "\n\n".join(parts)


def _said(patch: Patch, here: str = "", *, show_all: bool) -> Iterator[str]:
    """The part from the page and the declaration; `here` is a note on the present sglang."""
    yield render.filled(f"{patch.id} ({patch.kind}): {patch.summary}")
    written = patch_page.read(patch.id)
    for title, text in (
        ("Use it if", written.condition),
        ("Gain", written.gain),
        ("Cost", written.cost),
        ("Why", written.why),
        ("How", written.how),
        ("Obsolete when", written.goes_when),
        ("Here", here),
    ):
        if text:
            yield f"{title}:\n{markdown.shown(text)}"
    if links := patch_page.upstream_links(patch):
        yield "Upstream:\n" + "\n".join(f"  {link}" for link in links)
    if patch.proven_with is not None and show_all:
        yield "\n".join(_tested_with(patch.proven_with))
    elif works := features(patch, by_id(sets.load())):
        yield render.filled(f"It {works}.")


def _tested_with(proven_with: Mapping[str, str]) -> Iterator[str]:
    """The features that leave a patch on, each with its clause and its first flags."""
    yield "Tested with:"
    yield render.filled(
        "A plain server, and a server with any feature of this list. Every other feature turns "
        "the patch off.",
        "  ",
    )
    for feature in setups.FEATURES.all:
        if feature.name in proven_with:
            flags = feature.flags()[:_FLAGS]
            more = f" ({' or '.join(flags)})" if flags else ""
            yield render.item(f"{feature.name}: {feature.clause}{more}")


def _differences(tree: source.Tree, judged: Verdict) -> Iterator[dict[str, str]]:
    """For a refusal: each unknown definition with its diff against the nearest known release."""
    if judged.nearest is None:
        return
    try:
        known = tree_at(version=judged.nearest)
    except (OperatorError, OSError, RuntimeError) as error:
        why = f"  (no copy of {judged.nearest} to compare with: {error})"
        yield {"reference": judged.unknown[0], "diff": why}
        return
    for reference in judged.unknown:
        before, after = known.definition(reference), tree.definition(reference)
        lines = difflib.unified_diff(
            before.text.splitlines() if before else [],
            after.text.splitlines() if after else [],
            judged.nearest,
            str(tree.root),
            lineterm="",
        )
        yield {"reference": reference, "diff": "\n".join(lines)}
