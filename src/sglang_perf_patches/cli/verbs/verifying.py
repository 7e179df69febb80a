"""``verify``: each patch that applies beside stock, on this machine, bit by bit."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ... import sets
from ...judge import verdict
from ...model import selection
from ...model.patch import by_id
from ...model.selection import Selection
from ...proof import verify
from . import add_json, tree_at


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "verify", help="compare each patch that applies with stock, on this machine, bit by bit"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="sets or patches; all of them")
    parser.add_argument(
        "--timeout", type=float, default=900.0, metavar="S", help="seconds that a set may take"
    )
    add_json(parser)
    parser.set_defaults(function=_verify)


def _verify(given: argparse.Namespace) -> int:
    named = _named(given.names)
    tree = tree_at(None)
    judged = [
        found for found in verdict.judge_each(sets.load(), tree) if found.patch.id in named.chosen
    ]
    if not given.json:
        print(f"sglang {tree.version} at {tree.root}\n", flush=True)
    width = max(len(found.patch.id) for found in judged)
    outcomes = []
    for outcome in verify.verify(judged, limit_s=given.timeout):
        outcomes.append(outcome)
        if not given.json:
            print(f"{outcome.patch:<{width}}  {_outcome_text(outcome)}", flush=True)
    if given.json:
        data = {
            "sglang": {"version": tree.version, "path": str(tree.root)},
            "outcomes": [asdict(outcome) for outcome in outcomes],
        }
        print(json.dumps(data, indent=2))
    return verify.exit_code(outcomes, named.in_full)


def _named(names: Sequence[str]) -> Selection:
    """The patches that were named: a set's name stands for its policy patches too."""
    patches = by_id(sets.load())
    members = [id for id, patch in patches.items() if not names or patch.set in names]
    found = selection.parse(",".join([*names, *members]), patches)
    return Selection(found.text, found.chosen, found.by_name, frozenset(names) & found.in_full)


def _outcome_text(outcome: verify.Outcome) -> str:
    if outcome.word == "equal" and outcome.device:
        return (
            f"equal      {outcome.compared} comparisons in {outcome.seconds:.0f} s on "
            f"{verify.ON[outcome.device]}: {outcome.reason}"
        )
    return f"{outcome.word:<9}  {outcome.reason}"
