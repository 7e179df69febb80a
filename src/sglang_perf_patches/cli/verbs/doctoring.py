"""``doctor``: whether all is well here, or what an upgrade to another sglang would do."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ...judge import upgrade
from ...judge.source import Tree, TreeError
from ...model.selection import Selection
from .. import render
from . import (
    add_json,
    add_tree,
    asking,
    health,
    hinting,
    judged,
    listing,
    selected,
    stock_switches,
    tree_at,
)

PARSER: dict[str, Any] = {
    "epilog": "Alone, it says whether the patches are installed, loaded, live and have run, and "
    "what to change. With another sglang, what that would change; if no sglang is installed here, "
    "what the patches would do to the other one. " + asking.HELP
}
_COLOURS = {"lost": "red", "gained": "green", "ours again": "green"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The tree to upgrade to, a server's GPU, or a model."""
    add_tree(parser)
    parser.add_argument("--all", action="store_true", help="patches that do not change too")
    asking.add_options(parser)
    hinting.add_options(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print what changes; 1 if the upgrade loses a chosen patch."""
    if args.model is None:
        hinting.require_none(args)
    if args.command is not None:
        if args.model is not None:
            args.parser.error("--model and a command after -- exclude each other")
        return asking.run(args, in_short=False)
    asking.reject_gpu(args)
    if args.sglang_path is None and args.sglang_version is None:
        if args.model is None:
            return health.run(as_json=args.json)
        alone = hinting.Hints.of(args)
        print(json.dumps(alone.data, indent=2) if args.json else alone.text)
        return 0
    selection = selected()
    there = tree_at(args.sglang_path, args.sglang_version)
    hints = hinting.Hints.of(args, there) if args.model is not None else None
    try:
        here = tree_at()
    except TreeError:
        return _judge_alone(there, selection, hints, args)
    prospects = upgrade.compare(judged(here), judged(there))
    lost = upgrade.lost(prospects, selection.ids)
    if args.json:
        data = {
            "from": {"version": here.version, "path": str(here.root)},
            "to": {"version": there.version, "path": str(there.root)},
            "selection": selection.text,
            "patches": [
                {
                    "id": prospect.here.patch.id,
                    "change": prospect.change,
                    "from": prospect.here.word,
                    "to": prospect.there.word,
                    "reason": prospect.there.reason,
                }
                for prospect in prospects
            ],
            "lost": lost,
            "stock_switches": _switches(there),
            **(hints.data if hints else {}),
        }
        print(json.dumps(data, indent=2))
    else:
        shown = [one for one in prospects if args.all or one.change not in upgrade.UNCHANGED]
        rows = [["PATCH", here.version, there.version, "CHANGE", "WHY"]]
        for prospect in shown:
            words = [
                prospect.here.word,
                prospect.there.word,
                prospect.change,
                prospect.there.reason,
            ]
            rows.append([prospect.here.patch.id, *words])
        print(f"{render.filled(upgrade.conclusion(prospects, selection.ids))}\n")
        print(f"from sglang {here.version} at {here.root}")
        print(f"to   sglang {there.version} at {there.root}")
        if shown:
            print(f"\n{render.table(rows, column=3, colours=_COLOURS)}")
        if len(shown) < len(prospects):
            print(f"\n{len(prospects) - len(shown)} more do not change: add --all")
        _print_switches(there)
        if hints:
            print(f"\n{hints.text}")
    return 1 if lost else 0


def _judge_alone(
    there: Tree, selection: Selection, hints: hinting.Hints | None, args: argparse.Namespace
) -> int:
    """Without a sglang to upgrade from: the verdicts; 1 if a chosen patch is refused."""
    verdicts = judged(there)
    lost = [
        verdict.patch.id
        for verdict in verdicts
        if verdict.word == "refused" and verdict.patch.id in selection.ids
    ]
    if args.json:
        data = {
            "from": None,
            "to": {"version": there.version, "path": str(there.root)},
            "selection": selection.text,
            "patches": [
                {
                    "id": verdict.patch.id,
                    "change": None,
                    "from": None,
                    "to": verdict.word,
                    "reason": verdict.reason,
                }
                for verdict in verdicts
            ],
            "lost": lost,
            "stock_switches": _switches(there),
            **(hints.data if hints else {}),
        }
        print(json.dumps(data, indent=2))
    else:
        prospects = listing.prospects(selection, verdicts, is_here=False)
        print("this Python has no sglang to upgrade from")
        print(f"to   sglang {there.version} at {there.root}\n")
        where = f"ON {there.version}"
        print(listing.table(verdicts, prospects, where=where, with_all=True))
        if lost:
            print(f"\nchosen, and refused: {', '.join(lost)}")
        _print_switches(there)
        if hints:
            print(f"\n{hints.text}")
    return 1 if lost else 0


def _switches(there: Tree) -> list[dict[str, str]]:
    return [
        {
            "name": switch.name,
            "gains": switch.gains,
            "costs": switch.costs,
            "measure": switch.command,
        }
        for switch in stock_switches.of(there)
    ]


def _print_switches(there: Tree) -> None:
    text = stock_switches.text(stock_switches.of(there))
    if text:
        print(f"\n{text}")
