"""``list``: what each patch would do to a sglang tree."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from typing import Any

from ... import sets
from ...judge import source, verdict
from ...judge.verdict import Verdict
from ...model.selection import Selection
from . import add_json, add_tree, is_lost, selected, table, tree_at

ENTRY_POINT = "perf_patches"
"""The name under which ``SGLANG_PLUGINS`` lets this plugin through."""


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser("list", help="what each patch would do to a sglang tree")
    add_tree(parser)
    add_json(parser)
    parser.set_defaults(function=_list)


def _list(given: argparse.Namespace) -> int:
    chosen = selected()
    tree = tree_at(given.sglang_path)
    verdicts = verdict.judge_each(sets.load(), tree)
    if given.json:
        print(json.dumps(_list_data(tree, chosen, verdicts), indent=2))
    else:
        print(f"sglang {tree.version} at {tree.root}\n")
        print(table(_list_rows(chosen, verdicts)))
        for note in _notes(tree):
            print(f"\n{note}")
    return 1 if any(is_lost(chosen, judged) for judged in verdicts) else 0


def _list_data(tree: source.Tree, chosen: Selection, verdicts: Iterable[Verdict]) -> dict[str, Any]:
    """What ``list --json`` prints."""
    return {
        "sglang": {"version": tree.version, "path": str(tree.root)},
        "selection": chosen.text,
        "patches": [verdict_data(chosen, judged) for judged in verdicts],
    }


def verdict_data(chosen: Selection, judged: Verdict) -> dict[str, Any]:
    """What is said of a patch in JSON."""
    patch = judged.patch
    variant = judged.variant
    return {
        "id": patch.id,
        "set": patch.set,
        "kind": patch.kind,
        "selected": patch.id in chosen.chosen,
        "verdict": judged.word,
        "reason": judged.reason,
        "upstream": list(patch.upstream),
        "built_in_since": patch.built_in_since,
        "targets": list(variant.targets + variant.adds) if variant else [],
    }


def _list_rows(chosen: Selection, verdicts: Iterable[Verdict]) -> list[list[str]]:
    rows = [["SET", "PATCH", "VERDICT", "ON", "UPSTREAM", "WHY"]]
    for judged in verdicts:
        patch = judged.patch
        on = "on" if patch.id in chosen.chosen else "off"
        if not patch.is_default and on == "off":
            on = "off (opt-in)"
        upstream = " ".join("#" + name.rpartition("#")[2] for name in patch.upstream) or "-"
        why = patch.summary if judged.word == "applies" else judged.reason
        rows.append([patch.set, patch.id, judged.word, on, upstream, why])
    return rows


def _notes(tree: source.Tree) -> list[str]:
    notes = []
    allowed = [name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",")]
    if tree.path("sglang.srt.plugins") is None:
        notes.append(
            "This release loads no plugins: start the server with "
            "`sglang-perf-patches run COMMAND ...`."
        )
    elif any(allowed) and ENTRY_POINT not in allowed:
        notes.append(
            f"SGLANG_PLUGINS does not name {ENTRY_POINT}, so sglang will not load this plugin: "
            "add the name, or start the server with `sglang-perf-patches run COMMAND ...`."
        )
    return notes
