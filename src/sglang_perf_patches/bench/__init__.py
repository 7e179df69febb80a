"""Comparisons of stock and patched on an operator's own machine: ``sglang-perf-patches bench``.

A set's module makes its tables: ``CHANGED_BY`` names the patches that can change what it plays,
``add_options(parser)`` adds the sizes that it lets an operator choose, and ``tables(given)``, whose
``given.named`` has the patches that were named alone, first shows that stock and patched give the
same, then yields each table as it is done. It raises `proof.Different` where they don't,
`proof.Missing` where this machine can't. It imports torch, sglang and mlx in its functions only,
because the command imports it to read its options. `measure`
runs one in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from .. import sets, worker
from ..judge import source
from ..judge.verdict import judge_each
from ..proof import Different, Missing
from . import report
from .report import Table

NAMES = sets.NAMES
"""The sets that have a bench, in the order of ``list``."""

TRACEBACK = "SGLANG_PERF_PATCHES_TRACEBACK"
"""Set for a child process: show the traceback of a failure."""

_NOTHING = "this machine can play nothing of it; bench server measures it in your own server"


def parser(set_name: str) -> argparse.ArgumentParser:
    """The options of a set's bench: ``--quick`` and its own sizes."""
    parser = argparse.ArgumentParser(
        prog=f"sglang-perf-patches bench {set_name}",
        epilog="Also: --json, and --html FILE for one page with charts.",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to check that it works")
    _module(set_name).add_options(parser)
    return parser


def changed_by(set_name: str) -> frozenset[str]:
    """The patches of a set that can change what its bench plays; the others need a whole server."""
    ids: frozenset[str] = _module(set_name).CHANGED_BY
    return ids


def words(set_name: str) -> dict[str, str]:
    """Patch → verdict on the installed sglang, for the patches of a set.

    Raises:
        TreeError: there is no sglang, or a file of it can't be read.
    """
    mine = [each for each in sets.load() if each.name == set_name]
    tree = source.Tree(source.find_installed())
    return {judged.patch.id: judged.word for judged in judge_each(mine, tree)}


def measure(
    set_name: str, options: Sequence[str], patches: Sequence[str] = ()
) -> Iterator[Table | tuple[str, str]]:
    """Each table of a set as it is done; at last how it ended and, in words, why.

    Args:
        set_name: the set.
        options: words that `parser` takes.
        patches: measure these alone, as if the others were not there; all of them if there is none.
    """
    words = [",".join(patches) or set_name, *options]
    # sglang and its libraries print too, and a progress bar goes to the terminal.
    with worker.Child(f"{__package__}", words, other_lines=sys.stderr) as child:
        ended = None
        for data in child:
            if "ended" in data:
                ended = (data["ended"], data["reason"])
                if data["traceback"] and os.environ.get(TRACEBACK):
                    print(data["traceback"], file=sys.stderr)
            else:
                yield report.table_from_json(json.dumps(data))
        yield ended or ("failed", child.why_it_ended())


def main(words: Sequence[str]) -> int:
    """In a process of its own: emit each table of a set or of patches of it, and how it ended."""
    named, *options = words
    set_name = named.partition(".")[0]
    if named != set_name:  # the other patches are not there, so what only they change is not played
        only = sets.only(named.split(","))
        sets.load = lambda: only  # type: ignore[assignment]
    args = parser(set_name).parse_args(options)
    args.named = () if named == set_name else tuple(named.split(","))
    ended, reason, trace = "skipped", _NOTHING, ""
    try:
        for table in _module(set_name).tables(args):
            worker.emit(json.loads(report.table_to_json(table)))
            ended, reason = "equal", ""
    except Different as error:
        ended, reason = "different", str(error)
    except Missing as error:
        ended, reason = "skipped", str(error)
    except Exception as error:
        trace = traceback.format_exc()
        ended, reason = "failed", f"it failed with {type(error).__name__}: {error}"
    worker.emit({"ended": ended, "reason": reason, "traceback": trace})
    return 0


def _module(set_name: str) -> Any:
    return import_module(f"{__name__}.{set_name}")
