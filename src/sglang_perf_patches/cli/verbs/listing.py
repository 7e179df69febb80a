"""``list``: what will happen here, or what each patch would do to any sglang tree."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ... import sets
from ...judge import source
from ...judge.source import TreeError
from ...judge.verdict import Verdict
from ...model.selection import Selection
from .. import machine, render
from . import add_json, add_tree, any_is_lost, judged, selected, tree_at

PARSER: dict[str, Any] = {
    "epilog": "Without --all it hides what does not concern this machine and this release."
}
ENTRY_POINT = "perf_patches"
"""The name under which ``SGLANG_PLUGINS`` lets this plugin through."""

WILL_RUN, BUILT_IN, ABSENT, REFUSED = (
    "will run",
    "already in sglang",
    "not for this release",
    "refused",
)
OFF, OPT_IN, SUPERSEDED, NEEDS = "off", "off (opt-in)", "superseded", "needs"
_COUNTED = (WILL_RUN, REFUSED, OFF, SUPERSEDED, NEEDS, BUILT_IN, ABSENT)
_CONCERN = {WILL_RUN, REFUSED, OFF, OPT_IN, SUPERSEDED}
COLOURS = {WILL_RUN: "green", REFUSED: "red", OFF: "yellow", OPT_IN: "yellow"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which tree, how much, and in which form."""
    add_tree(parser)
    parser.add_argument("--all", action="store_true", help="every patch, with its upstream links")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the list; 1 if something chosen by name is not available."""
    chosen = selected()
    is_here = args.sglang_path is None and args.sglang_version is None
    try:
        tree = tree_at(args.sglang_path, args.sglang_version)
    except TreeError as error:
        if is_here and not args.json:
            return _without_sglang(error)
        raise
    verdicts = judged(tree)
    if args.json:
        print(json.dumps(_data(tree, chosen, verdicts), indent=2))
    else:
        print(_text(tree, chosen, verdicts, show_all=args.all, is_here=is_here))
    return 1 if any_is_lost(chosen, verdicts) else 0


def verdict_data(chosen: Selection, judged: Verdict) -> dict[str, Any]:
    """A patch in JSON."""
    patch = judged.patch
    variant = judged.variant
    return {
        "id": patch.id,
        "set": patch.set,
        "kind": patch.kind,
        "selected": patch.id in chosen.ids,
        "verdict": judged.word,
        "reason": judged.reason,
        "upstream": list(patch.upstream),
        "built_in_since": patch.built_in_since,
        "targets": list(variant.targets + variant.adds) if variant else [],
    }


def prospects(
    chosen: Selection, verdicts: Iterable[Verdict], *, is_here: bool
) -> dict[str, tuple[str, str]]:
    """Patch → what will become of it, in an operator's words, and why.

    Args:
        chosen: what is selected.
        verdicts: on the tree.
        is_here: whether the tree is the installed one, so that this machine counts too.
    """
    all_of_them = list(verdicts)
    applying = {found.patch.id for found in all_of_them if found.word == "applies"}
    return {
        found.patch.id: _prospect(found, chosen, applying, is_here=is_here) for found in all_of_them
    }


def rows(
    verdicts: Iterable[Verdict], found: Mapping[str, tuple[str, str]], *, with_upstream: bool
) -> list[list[str]]:
    """The table of some patches, below its heading."""
    made = [
        [
            "PATCH",
            "HERE",
            *(["UPSTREAM"] if with_upstream else []),
            "WHAT IT DOES, OR WHY IT IS OFF",
        ]
    ]
    for one in verdicts:
        word, why = found[one.patch.id]
        links = " ".join("#" + name.rpartition("#")[2] for name in one.patch.upstream) or "-"
        made.append([one.patch.id, word, *([links] if with_upstream else []), why])
    return made


def _prospect(
    judged: Verdict, chosen: Selection, applying: set[str], *, is_here: bool
) -> tuple[str, str]:
    patch = judged.patch
    if judged.word == "built-in":
        return BUILT_IN, judged.reason
    if judged.word == "absent":
        return ABSENT, judged.reason
    if patch.id not in chosen.ids:
        return (OFF if patch.is_default else OPT_IN), patch.summary
    if judged.word == "refused":
        return REFUSED, judged.reason
    above = [
        patch_id
        for patch_id in patch.superseded_by
        if patch_id in applying and patch_id in chosen.ids
    ]
    if above:
        return SUPERSEDED, f"{above[0]} does its work and more"
    lacking = machine.lacking(patch) if is_here else []
    if lacking:
        return f"{NEEDS} {lacking[0]}", patch.summary
    return WILL_RUN, patch.summary


def _text(
    tree: source.Tree,
    chosen: Selection,
    verdicts: Sequence[Verdict],
    *,
    show_all: bool,
    is_here: bool,
) -> str:
    found = prospects(chosen, verdicts, is_here=is_here)
    shown = [one for one in verdicts if show_all or found[one.patch.id][0] in _CONCERN]
    parts = [
        f"{_counts(word for word, _ in found.values())}\n"
        f"on sglang {tree.version} at {tree.root}, "
        f"with SGLANG_PERF_PATCHES={chosen.text}"
    ]
    if shown:
        listed = rows(shown, found, with_upstream=show_all)
        parts.append(render.table(listed, column=1, colours=COLOURS))
    if len(shown) < len(verdicts):
        parts.append(f"{len(verdicts) - len(shown)} more: sglang-perf-patches list --all")
    return "\n\n".join([*parts, *(_notes(tree) if is_here else [])])


def _counts(words: Iterable[str]) -> str:
    """``13 will run, 2 refused, …``: what concerns the machine first, and no zero but these two."""
    number = Counter(
        OFF if word == OPT_IN else NEEDS if word.startswith(NEEDS) else word for word in words
    )
    named = {NEEDS: "need what this machine lacks"}
    return ", ".join(
        f"{number[word]} {named.get(word, word)}"
        for word in _COUNTED
        if number[word] or word in {WILL_RUN, REFUSED}
    )


def _without_sglang(error: TreeError) -> int:
    """The catalogue, for a look before installing; no sglang is still exit code 2."""
    catalogue = [["PATCH", "WHAT IT DOES"]]
    catalogue += [
        [patch.id, patch.summary + ("" if patch.is_default else " (opt-in)")]
        for patch_set in sets.load()
        for patch in patch_set.patches
    ]
    print(f"{len(catalogue) - 1} patches, for sglang 0.5.9 and later:\n")
    print(render.table(catalogue), flush=True)
    print(f"sglang-perf-patches: {error}", file=sys.stderr)
    print("To judge another one: --sglang-path DIR or --sglang-version 0.5.23", file=sys.stderr)
    return 2


def _data(tree: source.Tree, chosen: Selection, verdicts: Iterable[Verdict]) -> dict[str, Any]:
    """What ``list --json`` prints."""
    return {
        "sglang": {"version": tree.version, "path": str(tree.root)},
        "selection": chosen.text,
        "patches": [verdict_data(chosen, judged) for judged in verdicts],
    }


def _notes(tree: source.Tree) -> list[str]:
    allowed = [name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",")]
    if tree.path("sglang.srt.plugins") is None:
        return [
            "This release loads no plugins: start the server with "
            "`sglang-perf-patches run COMMAND ...`."
        ]
    if any(allowed) and ENTRY_POINT not in allowed:
        return [
            f"SGLANG_PLUGINS does not name {ENTRY_POINT}, so sglang will not load this plugin: "
            "add the name, or start the server with `sglang-perf-patches run COMMAND ...`."
        ]
    return []
