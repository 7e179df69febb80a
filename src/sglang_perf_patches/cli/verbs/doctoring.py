"""``doctor``: whether all is well here, or what an upgrade of sglang would change."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...compat.source import TreeError
from ...compat.verdict import Verdict
from ...faults import of_release
from .. import render
from . import add_json, add_tree, asking, health, judged, known_faults, selected, tree_at

PARSER: dict[str, Any] = {
    "usage": "%(prog)s [--all] [--json]\n"
    "       %(prog)s [--gpu NAME] [options] -- COMMAND\n"
    "       %(prog)s (--sglang-version V | --sglang-path DIR) [options]",
    "epilog": "Without arguments it says whether the patches are installed, loaded, live and have "
    "run, and what to change. With --sglang-version or --sglang-path it prints what an upgrade to "
    "that sglang would change. " + asking.HELP,
}
_ORDER = ("lost", "gained", "built-in", "absent", "same")


class UpgradeChange(NamedTuple):
    """What becomes of one patch: its verdict's word here, "" without a sglang, and that there."""

    here: str
    there: Verdict

    @property
    def change(self) -> str:
        """What the upgrade changes: one of `_ORDER`.

        ``lost``: it is refused there only; ``gained``: it applies there only; ``built-in`` and
        ``absent``: upstream has it, or its code is gone, there only; ``same``: nothing changes.
        """
        there = self.there.word
        if there == self.here or (there == "refused" and self.here == "absent"):
            return "same"
        return {"refused": "lost", "applies": "gained"}.get(there, there)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the tree to upgrade to, or a server's GPU."""
    add_tree(parser)
    parser.add_argument(
        "--all", action="store_true", help="also show what is well, off, not needed or unchanged"
    )
    asking.add_options(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the answer; exit code 1 if an upgrade would lose a chosen patch."""
    if args.command is not None:
        return asking.run(args)
    asking.reject_gpu(args)
    if args.sglang_path is None and args.sglang_version is None:
        return health.run(as_json=args.json, show_all=args.all)
    return _upgrade(args)


def _upgrade(args: argparse.Namespace) -> int:
    selection = selected()
    there = tree_at(args.sglang_path, args.sglang_version)
    here = None
    with contextlib.suppress(TreeError):
        here = tree_at()
    words = {one.patch.id: one.word for one in judged(here)} if here else {}
    prospects = [UpgradeChange(words.get(one.patch.id, ""), one) for one in judged(there)]
    chosen = [one for one in prospects if one.there.patch.id in selection.ids]
    lost = [one.there.patch.id for one in chosen if one.change == "lost"]
    if args.json:
        data = {
            "from": here and {"version": here.version, "path": str(here.root)},
            "to": {"version": there.version, "path": str(there.root)},
            "selection": selection.text,
            "patches": [
                {
                    "id": one.there.patch.id,
                    "change": one.change,
                    "from": one.here or None,
                    "to": one.there.word,
                    "reason": one.there.reason,
                }
                for one in prospects
            ],
            "lost": lost,
            "faults": [one.data() for one in of_release(there.version)],
        }
        print(json.dumps(data, indent=2))
        return 1 if lost else 0
    shown = [one for one in prospects if args.all or one.change != "same"]
    rows = [["PATCH", here.version if here else "-", there.version, "CHANGE", "WHY"]]
    for one in shown:
        words_of_it = [one.here or "-", one.there.word, one.change, one.there.reason]
        rows.append([one.there.patch.id, *words_of_it])
    more = len(prospects) - len(shown)
    start = f"from sglang {here.version} at {here.root}" if here else "this Python has no sglang"
    parts = [
        render.filled(_conclusion(prospects, lost)),
        f"{start}\nto   sglang {there.version} at {there.root}",
        render.table(rows) if shown else "",
        f"{more} more do not change: add --all" if more else "",
        known_faults.of_upgrade(here.version if here else None, there.version),
    ]
    print("\n\n".join(filter(None, parts)))
    return 1 if lost else 0


def _conclusion(prospects: Sequence[UpgradeChange], lost: Sequence[str]) -> str:
    """One sentence: the chosen patches that are lost, and how many patches have each change."""
    number = Counter(prospect.change for prospect in prospects)
    counts = [f"{number[word]} {word}" for word in _ORDER if number[word]]
    losses = f"chosen, and lost: {', '.join(lost)}" if lost else "no chosen patch is lost"
    return f"{losses} ({', '.join(counts)})"
