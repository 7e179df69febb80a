"""``doctor``: whether all is well here, or what an upgrade of sglang would change."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections import Counter
from typing import Any

from ...compat.source import TreeError
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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the tree to upgrade to, or a server's GPU."""
    add_tree(parser, "also show what is well, off, not needed or unchanged")
    asking.add_options(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the answer; exit code 1 if an upgrade would lose a chosen patch."""
    if args.command is not None:
        return asking.run(args)
    if args.gpu is not None:
        args.parser.error("--gpu needs the server's command after --")
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
    patches = []
    for one in judged(there):
        word = words.get(one.patch.id)
        of_it = {"id": one.patch.id, "change": _change(word, one.word), "from": word}
        patches.append({**of_it, "to": one.word, "reason": one.reason})
    changes = {each["id"]: each["change"] for each in patches}
    lost = [name for name in changes if changes[name] == "lost" and name in selection.ids]
    if args.json:
        data = {
            "from": here and {"version": here.version, "path": str(here.root)},
            "to": {"version": there.version, "path": str(there.root)},
            "selection": selection.text,
            "patches": patches,
            "lost": lost,
            "faults": [one.data() for one in of_release(there.version)],
        }
        print(json.dumps(data, indent=2))
        return 1 if lost else 0
    number = Counter(changes.values())
    counts = ", ".join(f"{number[word]} {word}" for word in _ORDER if number[word])
    losses = f"chosen, and lost: {', '.join(lost)}" if lost else "no chosen patch is lost"
    rows = [
        [each[key] or "-" for key in ("id", "from", "to", "change", "reason")]
        for each in patches
        if args.all or each["change"] != "same"
    ]
    heading = ["PATCH", here.version if here else "-", there.version, "CHANGE", "WHY"]
    more = len(patches) - len(rows)
    start = f"from sglang {here.version} at {here.root}" if here else "this Python has no sglang"
    parts = [
        render.filled(f"{losses} ({counts})"),
        f"{start}\nto   sglang {there.version} at {there.root}",
        render.table([heading, *rows]) if rows else "",
        f"{more} more do not change: add --all" if more else "",
        known_faults.of_upgrade(here.version if here else None, there.version),
    ]
    print("\n\n".join(filter(None, parts)))
    return 1 if lost else 0


def _change(here: str | None, there: str) -> str:
    """What an upgrade changes for a patch, by its verdicts: one of `_ORDER`.

    ``lost``: it is refused there only; ``gained``: it applies there only; ``built-in`` and
    ``absent``: upstream has it, or its code is gone, there only; ``same``: nothing changes.
    """
    if there == here or (there == "refused" and here == "absent"):
        return "same"
    return {"refused": "lost", "applies": "gained"}.get(there, there)
