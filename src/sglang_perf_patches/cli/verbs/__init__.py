"""The verbs of the command, one module each, and what they share.

A verb's module has ``PARSER`` (keyword arguments for its argparse parser), ``add_options(parser)``,
and ``run(given)``, which takes the parsed arguments and returns the exit code.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from ... import sets
from ...compat import source, verdict
from ...compat.verdict import Verdict
from ...model import releases, selection, switch
from ...model.errors import OperatorError
from ...model.patch import by_id
from ...model.selection import Selection


def selected(text: str | None = None) -> Selection:
    """The selection in a text (None: ``SGLANG_PERF_PATCHES``); a bad one is a SelectionError."""
    return selection.parse(switch.from_environment() if text is None else text, by_id(sets.load()))


def tree_at(path: str | None = None, version: str | None = None) -> source.Tree:
    """The tree to judge: the one at `path`, else that of release `version`, else the installed one.

    Raises:
        TreeError: there is none.
        DownloadError: the release can't be fetched.
        OperatorError: it is older than every release that the patches are for.
    """
    if version is not None:
        from ... import downloads  # loaded only for a download

        _require_supported(version)
        path = str(downloads.tree(version))
    tree = source.installed() if path is None else source.at(path)
    _require_supported(tree.version)
    return tree


def _require_supported(release: str) -> None:
    if releases.is_too_old(release):
        known = f"the patches are for {releases.KNOWN[0]} … {releases.KNOWN[-1]}"
        raise OperatorError(f"sglang {release} is not supported: {known}")


def judged(tree: source.Tree) -> list[Verdict]:
    """The verdict on every patch, in declared order."""
    return verdict.judge_each(sets.load(), tree)


def any_is_lost(chosen: Selection, verdicts: Iterable[Verdict]) -> bool:
    """Whether a patch that the operator named is not available."""
    return any(chosen.is_unavailable(verdict.patch.id, verdict.word) for verdict in verdicts)


def names_of_patches(**_: Any) -> list[str]:
    """The names that a shell may complete: sets and patches."""
    return [*sets.NAMES, *by_id(sets.load())]


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option for JSON."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_tree(parser: argparse.ArgumentParser, all_means: str = "") -> None:
    """Add the options for the tree to judge, and ``--all``, if that means something."""
    add = parser.add_mutually_exclusive_group().add_argument
    places = "its package, the folder above it, or a checkout"
    path = f"judge this sglang instead of the installed one: {places}"
    add("--sglang-path", metavar="DIR", help=path)
    release = "judge this release; it is fetched from the package index and not installed"
    add("--sglang-version", metavar="V", help=release)
    if all_means:
        parser.add_argument("--all", action="store_true", help=all_means)
