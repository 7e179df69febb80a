"""``bench``: times of stock and patched in turns, after showing that they give the same."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ... import bench
from ...bench import report
from ...model.selection import SelectionError
from . import add_json, tree_at


def add(verbs: Any) -> None:
    """Add the verb's parser, which leaves what it does not know to the set's own."""
    parser = verbs.add_parser(
        "bench",
        help="time stock and patched in turns, after showing that they give the same",
        epilog="One set may be given options of its own; bench SET --help names them.",
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this, or a set's options")
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"of {', '.join(bench.NAMES)}")
    add_json(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one page with charts")
    parser.set_defaults(function=_bench, usage=parser)


def _bench(given: argparse.Namespace) -> int:
    if given.help and len(given.sets) != 1:
        given.usage.print_help()
        return 0
    names = _bench_sets(given.sets, ["--help"] if given.help else given.options)
    if given.html:
        report.require_writable(given.html)
    tree = tree_at(None)
    tables: list[report.Table] = []
    ended: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name in names:
        print(f"bench {name} ...", file=sys.stderr, flush=True)
        for found in bench.measure(name, given.options):
            if isinstance(found, report.Table):
                tables.append(found)
                if not given.json:
                    print(f"{report.to_text(found)}\n", flush=True)
            else:
                ended[name], reasons[name] = found
        if not given.json and ended[name] != "equal":
            print(f"{name}: {ended[name]}: {reasons[name]}\n", flush=True)
    made = report.Report(
        f"{tree.version} at {tree.root}", report.machine(), tuple(tables), ended, reasons
    )
    if given.json:
        print(report.to_json(made))
    if given.html:
        report.write_page(given.html, made)
    return report.worst(list(ended.values()))


def _bench_sets(named: Sequence[str], options: Sequence[str]) -> tuple[str, ...]:
    """The sets to bench; options of its own must be ones that the only set has."""
    for name in named:
        if name not in bench.NAMES:
            raise SelectionError(f"unknown set {name!r}: the sets are {', '.join(bench.NAMES)}")
    names = tuple(dict.fromkeys(named)) or bench.NAMES
    if len(names) == 1:
        bench.parser(names[0]).parse_args(list(options))  # says what is wrong, and ends
    elif set(options) - {"--quick"}:
        raise SelectionError(f"{options[0]}: such an option needs one set's name before it")
    return names
