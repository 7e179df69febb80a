"""``explain``: a patch's page and what it changes; or the patches of a set."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ... import patch_page, sets
from ...compat.source import Tree, TreeError
from ...compat.verdict import Verdict
from ...model import setups
from ...model.errors import OperatorError
from ...model.patch import Patch, by_id
from ...model.releases import supported_until
from ...model.selection import Selection, members
from ...model.switch import is_off
from .. import render
from ..table import features, of_patches
from . import add_json, add_tree, any_is_lost, judged, listing, names_of_patches, selected, tree_at

PARSER: dict[str, Any] = {}
_FLAGS = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options: what to explain, on which tree, and in which form."""
    name: Any = parser.add_argument("patch", metavar="PATCH", help="a patch's name, or a set's")
    name.completer = names_of_patches
    tested = "also the features that a patch was tested with, and what it changes; of a set: costs"
    add_tree(parser, tested)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the explanation; exit code 1 if the patch was chosen by name and is not available."""
    patches = by_id(sets.load())
    ids = members(args.patch, patches, policies=True)
    selection = selected()
    is_here = args.sglang_path is None and args.sglang_version is None
    try:
        tree = tree_at(args.sglang_path, args.sglang_version)
    except TreeError as error:
        if args.json or not is_here:
            raise
        render.warn(error)  # the reader may not have installed sglang yet
        named = (patch for name, patch in patches.items() if name in ids)
        print("\n\n\n".join("\n\n".join(_said(each, show_all=args.all)) for each in named))
        return 2
    everything = judged(tree)
    verdicts = [verdict for verdict in everything if verdict.patch.id in ids]
    if args.json:
        data = [_data(tree, selection, verdict) for verdict in verdicts]
        print(json.dumps(data[0] if args.patch in ids else {"patches": data}, indent=2))
    elif args.patch in ids:
        words = {verdict.patch.id: verdict.word for verdict in everything}
        print("\n\n".join(_parts(tree, selection, verdicts[0], words, show_all=args.all)))
    else:
        prospects = listing.prospects(selection, everything, is_here=is_here)
        shown = [one for one in verdicts if args.all or one.word not in {"built-in", "absent"}]
        how = {"with_all": args.all, "with_costs": args.all}
        parts = [
            f"on sglang {tree.version}{_until(tree)}",
            of_patches(shown, everything, prospects, tree.version, **how),
            listing.only_named((one for one in verdicts if one not in shown), prospects),
            "Costs and features: add --all. A patch: sglang-perf-patches explain PATCH",
        ]
        print("\n\n".join(filter(None, parts)))
    return 1 if any_is_lost(selection, verdicts) else 0


def _until(tree: Tree) -> str:
    day = supported_until(tree.version)
    return day and f" (supported until {day})"


def _choice(selection: Selection, patch: Patch) -> str:
    """Whether the selection includes a patch, and how to change that."""
    text = f"SGLANG_PERF_PATCHES={selection.text}"
    if patch.id in selection.ids:
        return f"Chosen by {text}. To turn it off: {text},-{patch.id}"
    hint = "" if patch.is_default else ": an opt-in patch needs its full name"
    # After `none` and its like nothing can be added.
    before = "" if is_off(selection.text) else f"{selection.text},"
    return f"Not chosen by {text}{hint}. To turn it on: SGLANG_PERF_PATCHES={before}{patch.id}"


def _data(tree: Tree, selection: Selection, judged: Verdict) -> dict[str, Any]:
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


def _parts(
    tree: Tree, selection: Selection, judged: Verdict, word: Mapping[str, str], *, show_all: bool
) -> Iterator[str]:
    """The explanation of a patch; `word` has the verdict on each patch."""
    patch, variant = judged.patch, judged.variant
    note = variant.note if variant else ""
    first, *others = _said(patch.proven_in(variant), note, show_all=show_all)
    here = f"On sglang {tree.version}{_until(tree)}: {judged.word}: {judged.reason}."
    yield first
    yield f"{render.filled(here)}\n{_choice(selection, patch)}"
    yield from others
    if patch.requires:
        yield f"Needs: {', '.join(f'{name} ({word[name]} here)' for name in patch.requires)}"
    variant = variant or judged.closest
    if variant is not None and show_all:
        changes = "\n  ".join(["What it changes:", *variant.targets, *variant.adds])
        yield f"{changes}\n" + "\n  ".join(["What it relies on:", *variant.depends])
    for each in _differences(tree, judged):
        yield f"{each['reference']}, from {judged.nearest} to this tree:\n{each['diff']}"
    if not show_all:
        yield "The features that it was tested with, and the code: add --all"


def _said(patch: Patch, here: str = "", *, show_all: bool) -> Iterator[str]:
    """The part from the page and the declaration; `here` is a note on the present sglang."""
    yield render.filled(f"{patch.id} ({patch.kind}): {patch.summary}")
    page = patch_page.read(patch.id)
    of_page = {"Use it if": page.condition, "Gain": page.gain, "Cost": page.cost}
    of_page |= {"Why": page.why, "How": page.how, "Obsolete when": page.goes_when}
    for title, text in {**of_page, "Here": here}.items():
        if text:
            yield f"{title}:\n{render.markdown(text)}"
    if links := patch_page.upstream_links(patch):
        yield "\n  ".join(["Upstream:", *links])
    if patch.proven_with is None or not show_all:
        if works := features(patch, by_id(sets.load())):
            yield render.filled(f"It {works}.")
        return
    tested = (
        "A plain server, and a server with any feature of this list. Every other feature turns the "
        "patch off."
    )
    lines = ["Tested with:", render.filled(tested, "  ")]
    for feature in setups.FEATURES.all:
        if feature.name in patch.proven_with:
            flags = feature.flags()[:_FLAGS]
            more = f" ({' or '.join(flags)})" if flags else ""
            lines.append(render.item(f"{feature.name}: {feature.clause}{more}"))
    yield "\n".join(lines)


def _differences(tree: Tree, judged: Verdict) -> Iterator[dict[str, str]]:
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
        found = (known.definition(reference), tree.definition(reference))
        before, after = (one.text.splitlines() if one else [] for one in found)
        lines = difflib.unified_diff(before, after, judged.nearest, str(tree.root), lineterm="")
        yield {"reference": reference, "diff": "\n".join(lines)}
