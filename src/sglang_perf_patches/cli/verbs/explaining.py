"""``explain``: one patch, why, how, its gain, and where its definitions are."""

from __future__ import annotations

import argparse
import difflib
import json
import textwrap
from typing import Any

from ... import sets
from ...judge import downloads, source, verdict
from ...judge.verdict import Verdict
from ...model.patch import by_id
from ...model.selection import Selection, SelectionError
from . import add_json, add_tree, is_lost, selected, tree_at
from .listing import verdict_data


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser("explain", help="one patch: why, how, its gain, its targets")
    parser.add_argument("patch", metavar="PATCH")
    add_tree(parser)
    add_json(parser)
    parser.set_defaults(function=_explain)


def _explain(given: argparse.Namespace) -> int:
    patches = by_id(sets.load())
    if given.patch not in patches:
        near = difflib.get_close_matches(given.patch, patches, n=3, cutoff=0.4)
        raise SelectionError(
            f"unknown patch {given.patch!r}: "
            + (f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(patches)}")
        )
    chosen = selected()
    tree = tree_at(given.sglang_path)
    judged = next(
        found for found in verdict.judge_each(sets.load(), tree) if found.patch.id == given.patch
    )
    if given.json:
        print(json.dumps(_explain_data(tree, chosen, judged), indent=2))
    else:
        print(_explain_text(tree, judged))
    return 1 if is_lost(chosen, judged) else 0


def _explain_data(tree: source.Tree, chosen: Selection, judged: Verdict) -> dict[str, Any]:
    patch = judged.patch
    return {
        "sglang": {"version": tree.version, "path": str(tree.root)},
        **verdict_data(chosen, judged),
        "summary": patch.summary,
        "why": patch.why,
        "how": patch.how,
        "gain": patch.gain,
        "condition": patch.condition,
        "requires": list(patch.requires),
        "superseded_by": list(patch.superseded_by),
        "definitions": [
            {"reference": reference, "role": role, "file": file, "line": line}
            for reference, role, file, line in _places(tree, judged)
        ],
        "differences": [
            {"reference": ref, "diff": diff} for ref, diff in _differences(tree, judged)
        ],
    }


def _explain_text(tree: source.Tree, judged: Verdict) -> str:
    patch = judged.patch
    parts = [f"{patch.id} ({patch.kind}): {patch.summary}"]
    parts.append(f"On sglang {tree.version}: {judged.word}: {judged.reason}.")
    for title, text in (
        ("Why", patch.why),
        ("How", patch.how),
        ("Gain", patch.gain),
        ("Condition", patch.condition),
        ("Here", judged.variant.note if judged.variant else ""),
    ):
        if text:
            parts.append(_paragraph(title, text))
    if patch.upstream:
        parts.append("Upstream:\n" + "\n".join(f"  {link}" for link in patch.upstream_links()))
    for title, names in (("Needs", patch.requires), ("Superseded by", patch.superseded_by)):
        if names:
            parts.append(f"{title}: {', '.join(names)}")
    places = [
        f"  {role:<8} {reference}  {f'{file}:{line}' if file else 'not there'}"
        for reference, role, file, line in _places(tree, judged)
    ]
    if places:
        parts.append("Definitions:\n" + "\n".join(places))
    for reference, diff in _differences(tree, judged):
        parts.append(f"{reference}, from {judged.nearest} to this tree:\n{diff}")
    return "\n\n".join(parts)


def _paragraph(title: str, text: str) -> str:
    return f"{title}:\n" + textwrap.fill(
        " ".join(text.split()), 96, initial_indent="  ", subsequent_indent="  "
    )


def _places(tree: source.Tree, judged: Verdict) -> list[tuple[str, str, str, int]]:
    """Reference, role, file and first line of each definition of the variant that fits best."""
    variant = judged.variant or next(
        (found for found in judged.patch.variants if judged.nearest in found.releases), None
    )
    if variant is None:
        return []
    roles = [(reference, "changes") for reference in variant.targets]
    roles += [(reference, "adds") for reference in variant.adds]
    roles += [(reference, "needs") for reference in variant.depends]
    found = []
    for reference, role in roles:
        definition = tree.definition(reference)
        if definition:
            found.append((reference, role, str(definition.path), definition.lines[0][0]))
        else:
            found.append((reference, role, "", 0))
    return found


def _differences(tree: source.Tree, judged: Verdict) -> list[tuple[str, str]]:
    """For a refusal: each unknown definition, and its diff from the nearest known release."""
    if judged.nearest is None:
        return []
    try:
        known = source.Tree(source.find(downloads.tree(judged.nearest)))
    except downloads.DownloadError as error:
        return [(judged.unknown[0], f"  (no copy of {judged.nearest} to compare with: {error})")]
    found = []
    for reference in judged.unknown:
        before, after = known.definition(reference), tree.definition(reference)
        lines = difflib.unified_diff(
            before.text.splitlines() if before else [],
            after.text.splitlines() if after else [],
            f"{judged.nearest}",
            f"{tree.root}",
            lineterm="",
        )
        found.append((reference, "\n".join(lines)))
    return found
