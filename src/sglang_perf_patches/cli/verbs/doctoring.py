"""``doctor``: what an upgrade to another sglang would do to the patches."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ... import sets
from ...judge import upgrade as doctor
from ...judge import verdict
from . import add_json, selected, table, tree_at


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "doctor", help="what an upgrade to another sglang would do to the patches"
    )
    other = parser.add_mutually_exclusive_group(required=True)
    other.add_argument("--sglang-path", metavar="DIR", help="a tree, as for list")
    other.add_argument(
        "--sglang-version", metavar="V", help="a release: fetched from the index, not installed"
    )
    add_json(parser)
    parser.set_defaults(function=_doctor)


def _doctor(given: argparse.Namespace) -> int:
    chosen = selected()
    here, there = tree_at(None), doctor.other_tree(given.sglang_path, given.sglang_version)
    prospects = doctor.compare(
        verdict.judge_each(sets.load(), here), verdict.judge_each(sets.load(), there)
    )
    lost = doctor.lost(prospects, chosen.chosen)
    if given.json:
        data = {
            "from": {"version": here.version, "path": str(here.root)},
            "to": {"version": there.version, "path": str(there.root)},
            "selection": chosen.text,
            "patches": [
                {
                    "id": found.here.patch.id,
                    "change": found.change,
                    "from": found.here.word,
                    "to": found.there.word,
                    "reason": found.there.reason,
                }
                for found in prospects
            ],
            "lost": lost,
        }
        print(json.dumps(data, indent=2))
    else:
        rows = [["PATCH", here.version, there.version, "CHANGE", "WHY"]]
        for found in prospects:
            words = [found.here.word, found.there.word, found.change, found.there.reason]
            rows.append([found.here.patch.id, *words])
        print(f"from sglang {here.version} at {here.root}")
        print(f"to   sglang {there.version} at {there.root}\n\n{table(rows)}")
        if lost:
            print(f"\nlost, and chosen: {', '.join(lost)}")
    return 1 if lost else 0
