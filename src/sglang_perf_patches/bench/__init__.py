"""Comparisons of stock and patched on an operator's own machine: ``sglang-perf-patches bench``.

A set's module gives its tables: ``add_options(parser)`` adds the sizes that it lets an operator
choose, and ``tables(given)`` first shows that stock and patched give the same, then yields each
table as it is done. It raises `proof.Different` where they don't, `proof.Missing` where this
machine can't. It imports torch, sglang and mlx in its functions only, because the command imports
it to read its options. `measure` runs one in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from .. import sets
from ..judge import source
from ..judge.verdict import judge_each
from ..proof import Different, Missing
from . import report
from .report import Table

NAMES = sets.NAMES
"""The sets that have a bench, in the order of ``list``."""


def parser(set_name: str) -> argparse.ArgumentParser:
    """What a set's bench can be told: ``--quick`` and its own sizes."""
    made = argparse.ArgumentParser(
        prog=f"sglang-perf-patches bench {set_name}",
        epilog="Besides: --json, and --html FILE for one page with charts.",
    )
    made.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    _module(set_name).add_options(made)
    return made


def words(set_name: str) -> dict[str, str]:
    """Patch → verdict on the installed sglang, for the patches of a set.

    Raises:
        TreeError: there is no sglang, or a file of it can't be read.
    """
    mine = [found for found in sets.load() if found.name == set_name]
    tree = source.Tree(source.find_installed())
    return {judged.patch.id: judged.word for judged in judge_each(mine, tree)}


def measure(set_name: str, options: Sequence[str]) -> Iterator[Table | tuple[str, str]]:
    """Each table of a set as it is done; at last how it ended and, in words, why."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", __package__, set_name, *options],
        env={**os.environ, "SGLANG_PERF_PATCHES": "none"},
        stdout=subprocess.PIPE,
        text=True,
    )
    ended = ("failed", "")
    with process:
        for line in process.stdout or ():
            if line.startswith('{"set"'):
                yield report.table_from_json(line)
            elif line.startswith('{"ended"'):
                ended = tuple(json.loads(line)["ended"])
            else:  # sglang and its libraries print too
                print(line, end="", file=sys.stderr)
    yield (
        ended
        if ended[1] or ended[0] != "failed"
        else (
            "failed",
            f"its process ended with {process.returncode}",
        )
    )


def main(words: Sequence[str]) -> int:
    """In a process of its own: print a JSON line a table, and how it ended."""
    set_name, *options = words
    given = parser(set_name).parse_args(options)
    ended = ("equal", "")
    try:
        for table in _module(set_name).tables(given):
            print(report.table_to_json(table), flush=True)
    except Different as error:
        ended = ("different", str(error))
    except Missing as error:
        ended = ("skipped", str(error))
    except Exception as error:
        traceback.print_exc()
        ended = ("failed", f"{type(error).__name__}: {error}")
    print(json.dumps({"ended": ended}), flush=True)
    return 0


def _module(set_name: str) -> Any:
    return import_module(f"{__name__}.{set_name}")
