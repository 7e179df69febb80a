"""``doctor``: whether all is well here, or what an upgrade of sglang would change."""

from __future__ import annotations

import argparse
import contextlib
import json
from typing import Any

from ...compat.source import TreeError
from ...compat.verdict import Verdict
from ...faults import of_release
from .. import render, sizing, upgrade
from . import (
    add_json,
    add_tree,
    asking,
    health,
    judged,
    known_faults,
    listing,
    selected,
    stock_switches,
    tree_at,
)

PARSER: dict[str, Any] = {
    "usage": "%(prog)s [--all] [--json]\n"
    "       %(prog)s [--gpu NAME] [options] -- COMMAND\n"
    "       %(prog)s (--sglang-version V | --sglang-path DIR) [options]\n"
    "       %(prog)s --model DIR --kv-gib G [options]",
    "epilog": "Without arguments it says whether the patches are installed, loaded, live and have "
    "run, and what to change. With --sglang-version or --sglang-path it prints what an upgrade to "
    "that sglang would change. " + asking.HELP,
}
_COLOURS = {"lost": "red", "gained": "green", "ours again": "green"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the tree to upgrade to, a server's GPU, or a model."""
    add_tree(parser)
    parser.add_argument(
        "--all", action="store_true", help="also show the patches whose state does not change"
    )
    asking.add_options(parser)
    sizing.add_options(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the answer; exit code 1 if an upgrade would lose a chosen patch."""
    if args.model is None:
        sizing.require_none(args)
    if args.command is not None:
        if args.model is not None:
            args.parser.error("--model and a command after -- exclude each other")
        return asking.run(args, in_short=False)
    asking.reject_gpu(args)
    if args.sglang_path is None and args.sglang_version is None:
        if args.model is None:
            return health.run(as_json=args.json)
        hints, said = sizing.hints(args)
        print(json.dumps(hints, indent=2) if args.json else said)
        return 0
    selection = selected()
    there = tree_at(args.sglang_path, args.sglang_version)
    hints, said = ({}, "") if args.model is None else sizing.hints(args, there)
    verdicts, switches = judged(there), stock_switches.of(there)
    here, prospects = None, []
    with contextlib.suppress(TreeError):
        here = tree_at()
    if here is None:
        refused = [each.patch.id for each in verdicts if each.word == "refused"]
        lost = [each for each in refused if each in selection.ids]
    else:
        prospects = [*map(upgrade.Prospect, judged(here), verdicts)]
        lost = upgrade.lost(prospects, selection.ids)
    if args.json:
        pairs: list[tuple[Verdict, str | None, str | None]] = [
            (each.there, each.change, each.here.word) for each in prospects
        ]
        data = {
            "from": here and {"version": here.version, "path": str(here.root)},
            "to": {"version": there.version, "path": str(there.root)},
            "selection": selection.text,
            "patches": [
                {
                    "id": one.patch.id,
                    "change": change,
                    "from": before,
                    "to": one.word,
                    "reason": one.reason,
                }
                for one, change, before in pairs or [(one, None, None) for one in verdicts]
            ],
            "lost": lost,
            "stock_switches": [each.data for each in switches],
            "faults": [one.data() for one in of_release(there.version)],
            **hints,
        }
        print(json.dumps(data, indent=2))
        return 1 if lost else 0
    to = f"to   sglang {there.version} at {there.root}"
    if here is None:
        words = listing.prospects(selection, verdicts, is_here=False)
        parts = [
            f"this Python has no sglang to upgrade from\n{to}",
            listing.table(verdicts, verdicts, words, there.version, with_all=True),
            f"chosen, and refused: {', '.join(lost)}" if lost else "",
        ]
    else:
        shown = [one for one in prospects if args.all or one.change not in upgrade.UNCHANGED]
        rows = [["PATCH", here.version, there.version, "CHANGE", "WHY"]]
        for one in shown:
            words_of_it = [one.here.word, one.there.word, one.change, one.there.reason]
            rows.append([one.here.patch.id, *words_of_it])
        more = len(prospects) - len(shown)
        parts = [
            render.filled(upgrade.conclusion(prospects, selection.ids)),
            f"from sglang {here.version} at {here.root}\n{to}",
            render.table(rows, column=3, colours=_COLOURS) if shown else "",
            f"{more} more do not change: add --all" if more else "",
        ]
    known = known_faults.of_upgrade(here.version if here else None, there.version)
    parts += [known, stock_switches.text(switches), said]
    print("\n\n".join(filter(None, parts)))
    return 1 if lost else 0
