"""The verbs of the command, a module each, and what they share.

A verb's module adds its parser with `add`, and sets as its ``function`` one that takes the parsed
arguments and returns the exit code.
"""

from __future__ import annotations

import argparse

from ... import sets
from ...judge import source
from ...judge.verdict import Verdict
from ...model import selection
from ...model.patch import by_id
from ...model.selection import Selection


def selected() -> Selection:
    """What the environment chooses.

    Raises:
        SelectionError: it is malformed, or names something unknown.
    """
    return selection.parse(selection.from_environment(), by_id(sets.load()))


def tree_at(path: str | None) -> source.Tree:
    """The tree to judge: at `path`, else the installed one.

    Raises:
        TreeError: there is none.
    """
    return source.at(path) if path is not None else source.installed()


def is_lost(chosen: Selection, judged: Verdict) -> bool:
    """Whether the operator asked for a patch by name and can't have it."""
    id = judged.patch.id
    return (judged.word == "refused" and id in chosen.by_name) or (
        judged.word == "absent" and id in chosen.in_full
    )


def table(rows: list[list[str]]) -> str:
    """Columns as wide as their widest cell, the last one free."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([cell.ljust(width) for cell, width in zip(row, widths, strict=False)] + row[-1:])
        for row in rows
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Let a verb be asked for JSON."""
    parser.add_argument("--json", action="store_true", help="for machines")


def add_tree(parser: argparse.ArgumentParser) -> None:
    """Let a verb be told which tree to judge."""
    parser.add_argument(
        "--sglang-path",
        metavar="DIR",
        help="judge this tree (the package, its parent or a checkout), not the installed one",
    )
