"""``list``: the state that each patch will have here, or the verdict on any sglang tree."""

from __future__ import annotations

import argparse
import glob
import importlib.util
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ... import patch_page
from ...compat.source import Tree, TreeError
from ...compat.verdict import Verdict
from ...model.patch import Patch
from ...model.releases import KNOWN, supported_until
from ...model.selection import Selection
from .. import entry_point, render
from ..table import OFF, OPT_IN, READY, States, of_patches
from . import add_json, add_tree, any_is_lost, judged, selected, tree_at

READY_MEANS = (
    "`ready`: the patch knows this code. It goes live in a server that needs it, unless the server "
    "uses a feature that the patch was not tested with."
)

_CLOSING = (
    "A figure with several numbers has one for each boot or run.",
    f"{READY_MEANS} For your server: sglang-perf-patches doctor -- COMMAND",
    "More about a patch, and its switch: sglang-perf-patches explain PATCH",
)

PARSER: dict[str, Any] = {
    "epilog": f"{READY_MEANS} Without --all, a patch that has nothing to do on this machine or "
    "release is only named. For your server: sglang-perf-patches doctor -- COMMAND",
}

REFUSED, BUILT_IN, ABSENT, NEEDS = "refused", "built-in", "absent", "needs"
_COUNTED = (READY, REFUSED, "off", NEEDS, BUILT_IN, ABSENT)
_CONCERN = {READY, REFUSED, OFF, OPT_IN}
_OTHERS = (
    "For a release that is not installed: sglang-perf-patches list --sglang-version "
    f"{KNOWN[-1]}. All patches: sglang-perf-patches help patches"
)
_GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dri/renderD*", "/dev/davinci*", "/dev/dxg")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options: which tree, how much detail, and in which form."""
    add_tree(parser, "every patch, with its reason and upstream links")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the list; exit code 1 if a patch chosen by name is not available."""
    selection = selected()
    is_here = args.sglang_path is None and args.sglang_version is None
    try:
        tree = tree_at(args.sglang_path, args.sglang_version)
    except TreeError as error:
        raise TreeError(f"{error}\n{_OTHERS}" if is_here and not args.json else error) from error
    verdicts = judged(tree)
    states = prospects(selection, verdicts, is_here=is_here)
    if args.json:
        data = {
            "sglang": {"version": tree.version, "path": str(tree.root)},
            "selection": selection.text,
            "patches": [
                {**verdict_data(selection, one, tree.version), "here": states[one.patch.id][0]}
                for one in verdicts
            ],
        }
        print(json.dumps(data, indent=2))
    else:
        parts = [*_parts(tree, selection, verdicts, states, show_all=args.all)]
        parts += [entry_point.why_not_loaded(tree)] if is_here else []
        print("\n\n".join(filter(None, parts)))
    return 1 if any_is_lost(selection, verdicts) else 0


def verdict_data(selection: Selection, judged: Verdict, release: str) -> dict[str, Any]:
    """The JSON object of a patch and its verdict on a release."""
    variant = judged.variant
    patch = judged.patch.proven_in(variant)
    return {
        "id": patch.id,
        "set": patch.set,
        "kind": patch.kind,
        "selected": patch.id in selection.ids,
        "verdict": judged.word,
        "reason": judged.reason,
        "upstream": list(patch.upstream),
        "built_in_since": patch.built_in_since,
        "targets": list(variant.targets + variant.adds) if variant else [],
        "proven_with": None if patch.proven_with is None else dict(patch.proven_with),
        "short": (headline := patch_page.read(patch.id).headline(release)) and headline._asdict(),
    }


def prospects(selection: Selection, verdicts: Iterable[Verdict], *, is_here: bool) -> States:
    """The state that each patch will have.

    ``ready`` means that it applies, and is live as soon as a server needs it. If the tree is the
    installed one (`is_here`), this machine counts too.
    """
    states = {}
    for one in verdicts:
        patch, is_chosen = one.patch, one.patch.id in selection.ids
        word, why = READY, patch.summary
        if one.word in {BUILT_IN, ABSENT} or (is_chosen and one.word == REFUSED):
            word, why = one.word, one.reason
        elif is_here and (missing := _missing(patch)):
            word, why = f"{NEEDS} {missing}", f"{'' if is_chosen else 'not chosen; '}{why}"
        elif not is_chosen:
            word = OFF if patch.is_default else OPT_IN
        states[patch.id] = word, why
    return states


def _missing(patch: Patch) -> str:
    """What a patch needs to have an effect and this machine lacks; "" if it lacks nothing."""
    if patch.set == "mlx":
        return "" if importlib.util.find_spec("mlx") else "mlx"
    needs_gpu = patch.set in {"mla", "mamba"}
    return "a GPU" if needs_gpu and not any(map(glob.glob, _GPUS)) else ""


def _parts(
    tree: Tree, selection: Selection, verdicts: Sequence[Verdict], states: States, *, show_all: bool
) -> Iterator[str]:
    concern = {id for id, (word, _) in states.items() if show_all or word in _CONCERN}
    concern |= selection.by_name
    shown = [one for one in verdicts if one.patch.id in concern]
    until = supported_until(tree.version)
    yield (
        f"{counts(word for word, _ in states.values())}\n"
        f"on sglang {tree.version}, {until and f'supported until {until}, '}"
        f"with SGLANG_PERF_PATCHES={selection.text or '(empty)'}\n"
        f"at {tree.root}"
    )
    yield of_patches(shown, verdicts, states, tree.version, with_all=show_all)
    for name, (word, why) in states.items():
        if word == REFUSED and not show_all:
            yield render.filled(f"{name} is {word}: {why}")
    if rest := only_named((one for one in verdicts if one not in shown), states):
        yield f"{rest}\nWhy these have nothing to do here: sglang-perf-patches list --all"
    yield from map(render.filled, _CLOSING)


def only_named(verdicts: Iterable[Verdict], states: States) -> str:
    """The names of patches that have nothing to do, a line for each state."""
    by_word: dict[str, list[str]] = {}
    for one in verdicts:
        by_word.setdefault(states[one.patch.id][0], []).append(one.patch.id)
    lines = (f"{word}: {', '.join(ids)}" for word, ids in by_word.items())
    return "\n".join(render.filled(line, "", "  ") for line in lines)


def counts(words: Iterable[str]) -> str:
    """``13 ready, 2 refused, …``; ``ready`` and ``refused`` also if they are 0."""
    number = Counter(NEEDS if word.startswith(NEEDS) else word.partition(" (")[0] for word in words)
    named = {NEEDS: "need what this machine lacks"}
    return ", ".join(
        f"{number[word]} {named.get(word, word)}"
        for word in _COUNTED
        if number[word] or word in {READY, REFUSED}
    )
