"""``verify``: compares patches whose results depend on the device with stock, bit by bit."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain, islice
from typing import Any

from ... import sets
from ...model import selection
from ...model.patch import by_id
from ...model.selection import Selection, SelectionError
from ...verify import Case
from ...verify import runner as verify
from .. import render
from . import add_json, judged, names_of_patches, tree_at

PARSER: dict[str, Any] = {
    "epilog": "Exit code 1: something differs or fails, nothing applies, or a patch that you named "
    "could not be compared. --json has the traceback of a case that fails."
}

_NOT_HERE = "built-in or absent"
_WORST_FIRST = ("failed", "different", "equal", "proven", _NOT_HERE, "refused", "skipped")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options: what to compare, and for how long."""
    add: Any = parser.add_argument
    names = add("names", nargs="*", metavar="NAME", help="sets or patches (default: all)")
    names.completer = names_of_patches
    limit = "seconds that each process may take (default: %(default)g)"
    add("--timeout", type=float, default=900.0, metavar="S", help=limit)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compare, print, and return `verify.exit_code`."""
    named = _named(args.names)
    tree = tree_at()
    verdicts = [each for each in judged(tree) if each.patch.id in named.ids]
    known, processes = verify.plan(verdicts)
    possible = verify.possible_records(verdicts)
    is_short = not processes and all(outcome.word == "built-in" for outcome in known)
    if not args.json and not is_short:
        print(f"sglang {tree.version}\nat {tree.root}\n", flush=True)
    width = max(map(len, named.ids))
    outcomes = []
    for outcome in chain(known, _compared(processes, args.timeout)):
        outcomes.append(outcome)
        if not args.json:
            room = 6 if outcome.word == "proven" else 10  # that one is read as a sentence
            start = f"{outcome.patch:<{width}}  {outcome.word:<{room}} "
            print(render.filled(_text(outcome), start, "    "), flush=True)
    kept = verify.keep_records(possible, outcomes)
    if args.json:
        data = {
            "sglang": {"version": tree.version, "path": str(tree.root)},
            "outcomes": [asdict(outcome) for outcome in outcomes],
            "records": kept,
        }
        print(json.dumps(data, indent=2))
    elif not is_short:
        print("\n", "\n\n".join([*map(render.filled, kept), _closing(outcomes)]), sep="")
    return verify.exit_code(outcomes, named.in_full)


def _compared(processes: Sequence[Sequence[Case]], limit_s: float) -> Iterator[verify.Outcome]:
    """Compare with stock, with a line on stderr as each step begins."""
    outcomes = verify.verify(processes, limit_s=limit_s)
    cases = [*chain.from_iterable(processes)]
    for number, case in enumerate(cases, 1):
        step = f"[{number}/{len(cases)}] {case.patch} on {verify.ON[case.device]} ..."
        print(step, file=sys.stderr, flush=True)
        yield from islice(outcomes, 1)
    yield from outcomes


def _named(names: Sequence[str]) -> Selection:
    """The patches of these names, which must name some; a set's name includes its policies."""
    patches = by_id(sets.load())
    members = [patch_id for patch_id, patch in patches.items() if not names or patch.set in names]
    parsed = selection.parse(",".join([*names, *members]), patches)
    if not parsed.ids:
        raise SelectionError(f"{' '.join(names)!r} names no patch to verify")
    return Selection(parsed.text, parsed.ids, parsed.by_name, frozenset(names) & parsed.in_full)


def _text(outcome: verify.Outcome) -> str:
    if outcome.word != "equal" or not outcome.device:
        return outcome.reason
    how = f"in {outcome.seconds:.0f} s on {verify.ON[outcome.device]}"
    return f"{outcome.compared} comparisons {how}: {outcome.reason}"


def _closing(outcomes: Sequence[verify.Outcome]) -> str:
    """The summary line: ``5 equal, 8 proven, 9 built-in or absent, 0 of 13 could not run``."""
    words: dict[str, str] = {}
    for outcome in outcomes:
        word = _NOT_HERE if outcome.word in _NOT_HERE else outcome.word
        before = words.get(outcome.patch, "skipped")
        words[outcome.patch] = min(word, before, key=_WORST_FIRST.index)
    number = Counter(words.values())
    parts = [
        f"{number[word]} {word}"
        for word in ("equal", "proven", "different", "failed", _NOT_HERE)
        if number[word] or word in {"equal", _NOT_HERE}
    ]
    could_not = number["skipped"] + number["refused"]
    return ", ".join([*parts, f"{could_not} of {len(words) - number[_NOT_HERE]} could not run"])
