"""``bench``: times of stock and patched in turns, after a check that they give the same."""

from __future__ import annotations

import argparse
import os
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import bench, sets
from ...bench import report
from ...judge import source
from ...judge.verdict import Verdict
from ...model.patch import by_id
from ...model.selection import SelectionError
from .. import last_bench, render
from ..progress import progress
from . import add_json, judged, names_of_patches, names_of_today, tree_at

PARSER: dict[str, Any] = {
    "epilog": "bench server compares your own server with and without patches; see its --help. "
    "A single set or patch takes more options; bench SET --help lists them. "
    "Exit code 1: stock and patched differ, something failed, or nothing could be measured.",
    "add_help": False,
}

_SERVER = ": SGLANG_PERF_PATCHES={} sglang-perf-patches bench server -- COMMAND"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What to measure; what this does not know is left to the set's own options."""
    parser.add_argument("-h", "--help", action="store_true", help="show this, or a set's options")
    named = f"of {', '.join(bench.NAMES)}, or a patch; all sets if none is named"
    names: Any = parser.add_argument("names", nargs="*", metavar="NAME", help=named)
    names.completer = names_of_patches
    add_json(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one page with charts")
    parser.add_argument(
        "--traceback", action="store_true", help="show the traceback of a set that fails"
    )
    parser.set_defaults(takes_unknown=True)


def run(args: argparse.Namespace) -> int:
    """Measure set by set and print each table as it is done."""
    if args.help and len(args.names) != 1:
        args.parser.print_help()
        return 0
    names, gone = names_of_today(args.names)
    if gone and not names:
        return 1  # as where nothing could be measured
    by_set = _chosen(names, ["--help"] if args.help else args.options)
    if args.html:
        report.require_writable(args.html)
    if args.traceback:
        os.environ[bench.TRACEBACK] = "1"
    tree = tree_at()
    verdicts = {verdict.patch.id: verdict for verdict in judged(tree)}
    tables: list[report.Table] = []
    ended: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    with progress(len(by_set), in_lines=True) as shown:  # a set's own lines come in between
        for name, patches in by_set.items():
            shown.step(f"bench {' '.join(patches) or name}")
            unfit = _unfit(name, patches, verdicts)
            if unfit:
                ended[name], reasons[name] = "skipped", unfit
            else:
                for result in bench.measure(name, args.options, patches):
                    shown.clear()
                    if not isinstance(result, report.Table):
                        ended[name], reasons[name] = result
                        continue
                    tables.append(result)
                    if not args.json:
                        print(f"{report.to_text(result, _columns())}\n", flush=True)
            if not args.json and ended[name] != "equal" and len(by_set) > 1:
                shown.clear()
                print(f"{name}: {ended[name]}: {reasons[name]}\n", flush=True)
    command = shlex.join(["sglang-perf-patches", "bench", *args.names, *args.options])
    whole = _report(tree, tables, ended, reasons, command)
    last_bench.keep(report.to_json(whole))
    if args.json:
        print(report.to_json(whole))
    else:
        print(_closing(ended, tables))
        for name in ended:
            print(_filled(report.verdict(whole, name)))
            left = _left(name, by_set[name], verdicts)
            if left and ended[name] == "equal":
                print(_filled(f"{name}: not played: {_needs_server(left)}"))
    if args.html:
        report.write_page(args.html, whole)
    nothing = "equal" not in ended.values()
    return 1 if nothing or gone else report.worst(list(ended.values()))


def _report(
    tree: source.Tree,
    tables: list[report.Table],
    ended: dict[str, Any],
    reasons: dict[str, str],
    command: str,
) -> report.Report:
    return report.Report(
        f"{tree.version} at {tree.root}", report.machine(), tuple(tables), ended, reasons, command
    )


def _unfit(name: str, patches: Sequence[str], verdicts: Mapping[str, Verdict]) -> str:
    """Why nothing can be measured of a set, or of patches of it; empty if something can."""
    for patch_id in patches:
        if verdicts[patch_id].word != "applies":
            return f"{patch_id} is {verdicts[patch_id].word}: {verdicts[patch_id].reason}"
    if patches and not bench.changed_by(name) & set(patches):
        return _needs_server(patches)
    if any(verdicts[patch_id].word == "applies" for patch_id in bench.changed_by(name)):
        return ""
    left = _left(name, patches, verdicts)
    none = "no patch that it plays applies to this sglang"
    return f"{none}; {_needs_server(left)}" if left else none


def _left(name: str, patches: Sequence[str], verdicts: Mapping[str, Verdict]) -> list[str]:
    """Patches that apply and that the bench of their set doesn't play."""
    return [
        patch_id
        for patch_id, verdict in verdicts.items()
        if verdict.patch.set == name
        and verdict.word == "applies"
        and patch_id not in bench.changed_by(name)
        and patch_id in (patches or verdicts)
    ]


def _needs_server(patches: Sequence[str]) -> str:
    named = ",".join(patches)
    return f"only a whole server shows what {', '.join(patches)} changes{_SERVER.format(named)}"


def _filled(text: str) -> str:
    """For a terminal: a command stays whole, on a line of its own."""
    before, command, named = text.partition(_SERVER.partition("{")[0])
    lines = textwrap.wrap(before, _columns() - 1, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines) + (f":\n  {command[2:]}{named}" if command else "")


def _columns() -> int:
    return min(report.WIDTH, render.width() or report.WIDTH)


def _closing(ended: dict[str, str], tables: Sequence[report.Table]) -> str:
    """One line for all: ``2 sets equal and measured in 5 tables, 1 skipped``."""
    words = list(ended.values())
    equal = words.count("equal")
    count = f"{len(tables)} table{'' if len(tables) == 1 else 's'}"
    parts = [f"{equal} of {len(words)} equal to stock and measured in {count}"]
    parts += [
        f"{words.count(word)} {word}"
        for word in ("different", "failed", "skipped")
        if word in words
    ]
    return ", ".join(parts)


def _chosen(named: Sequence[str], options: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Set → the patches to measure alone, none for the whole set.

    Options of its own must be ones that the only set has.

    Raises:
        SelectionError: a name is unknown, or an option stands beside several sets.
    """
    patches = by_id(sets.load())
    by_set: dict[str, tuple[str, ...]] = {}
    for name in named or bench.NAMES:
        if name in bench.NAMES:
            by_set[name] = ()
        elif name in patches:
            of_set = patches[name].set
            if by_set.get(of_set) != ():
                by_set[of_set] = (*by_set.get(of_set, ()), name)
        else:
            raise SelectionError(
                f"unknown set or patch {name!r}; the sets are {', '.join(bench.NAMES)}"
            )
    if len(by_set) == 1:
        (of_set,) = by_set
        args = bench.parser(of_set).parse_args(list(options))  # reports the error and exits
        listed = [name for name in (getattr(args, "patches", None) or "").split(",") if name]
        for name in listed:
            if name != of_set and (name not in patches or patches[name].set != of_set):
                raise SelectionError(f"--patches: {of_set} has no patch {name!r}")
        if listed and of_set not in listed:
            by_set[of_set] = tuple(listed)
    elif set(options) - {"--quick"}:
        raise SelectionError(f"{options[0]}: this option needs the name of one set before it")
    return by_set
