"""``doctor``: whether all is well here and what to change, or what an upgrade would change."""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ... import __version__, gpu
from ...compat.source import Tree, TreeError
from ...faults import of_release
from ...model.selection import Selection
from ...telemetry import records
from ...verified import version_of
from .. import entry_point, render
from ..table import READY, entry
from . import add_json, add_tree, any_is_lost, asking, judged, listing, selected, status, tree_at

PARSER: dict[str, Any] = {
    "usage": "%(prog)s [--all] [--json]\n"
    "       %(prog)s [--gpu NAME] [options] -- COMMAND\n"
    "       %(prog)s (--sglang-version V | --sglang-path DIR) [options]",
    "epilog": "Without arguments it says whether the patches are installed, loaded, live and have "
    "run, and what to change. With --sglang-version or --sglang-path it prints what an upgrade to "
    "that sglang would change. " + asking.HELP,
}
_PACKAGES = (
    *("sglang-kernel", "sgl-kernel", "torch", "triton", "flashinfer-python", "mlx", "mlx-lm"),
    *("transformers", "wrapt"),
)
"""Packages whose versions ``--json`` has, where they are installed."""

_ORDER = ("lost", "gained", "built-in", "absent", "same")


class Check(NamedTuple):
    """One check and its result."""

    check: str  # its name
    word: str  # ``ok``, ``look`` (worth a check), ``bad`` (something chosen is missing), or ``-``
    said: str  # what was found
    change: str = ""  # what to do about it


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
        return _health(args)
    return _upgrade(args)


def _health(args: argparse.Namespace) -> int:
    """Print the checks; exit code 1 if a chosen patch is not available or not live in a server."""
    selection, tree = selected(), tree_at()
    here = f"sglang-perf-patches {__version__} next to sglang {tree.version}"
    installed = Check("installed", "ok", f"{here}, Python {platform.python_version()}")
    loaded = Check("loaded", "ok", f"a server loads the entry point {entry_point.NAME}")
    if note := entry_point.why_not_loaded_here():
        loaded = Check("loaded", "look", "a server does not load the plugin by itself", note)
    checks = [installed, loaded, _chosen(tree, selection), *_servers()]
    if args.json:
        packages = {name: found for name in _PACKAGES if (found := version_of(name))}
        system = {"python": platform.python_version(), "system": platform.platform()}
        data = {
            "sglang": {"version": tree.version, "path": str(tree.root)},
            "versions": {"sglang-perf-patches": __version__, **system, **packages},
            "gpu": (driver := gpu.machine()) and driver._asdict(),
            "checks": [check._asdict() for check in checks],
            "faults": [one.data() for one in of_release(tree.version)],
        }
        print(json.dumps(data, indent=2))
    else:
        print("\n\n".join(filter(None, _text(checks, tree.version, show_all=args.all))))
    return 1 if any(check.word == "bad" for check in checks) else 0


def _text(checks: Sequence[Check], release: str, *, show_all: bool) -> Iterator[str]:
    """The conclusion, and what to change; with `show_all` every check."""
    bad = [check.check for check in checks if check.word in {"bad", "look"}]
    if bad:
        yield f"to check: {', '.join(bad)}"
    else:
        yield "all is well; for a server's command: sglang-perf-patches doctor -- COMMAND"
    for check in checks:
        if check.change:
            yield entry(f"{check.check}: {check.said}", check.change)
    if show_all:
        yield render.table([("CHECK", "", "WHAT WAS FOUND"), *(check[:3] for check in checks)])
        yield faults_in_short(release)


def _chosen(tree: Tree, selection: Selection) -> Check:
    verdicts = judged(tree)
    by_patch = listing.prospects(selection, verdicts, is_here=True)
    words = [word for word, _ in by_patch.values()]
    line = f"{listing.counts(words)}, with SGLANG_PERF_PATCHES={selection.text or 'none'}"
    if any_is_lost(selection, verdicts):
        change = "SGLANG_PERF_PATCHES names what this sglang can't have: sglang-perf-patches list"
        return Check("chosen", "bad", line, change)
    if listing.REFUSED in words:
        change = f"sglang-perf-patches explain {[*by_patch][words.index(listing.REFUSED)]}"
    elif READY not in words:
        change = "nothing is ready here: sglang-perf-patches list --all"
    else:
        return Check("chosen", "ok", line)
    return Check("chosen", "look", line, change)


def _servers() -> Iterator[Check]:
    """For each server, which patches are live and have run."""
    running = status.from_records(records.read_all(render.warn))
    if not running:
        yield Check("live", "-", "no process of this user has patches; start a server first")
        yield Check("has run", "-", "no process of this user has patches")
    for one in running:
        if any(data["prefix"] != sys.prefix for data in one.members):
            where = f"it runs in another environment, {one.members[0]['prefix']}"
            yield Check("live", "-", f"{one.name}: {where}", "run doctor there")
            continue
        states = records.over_processes(one.members)
        live = records.in_state(states, "live")
        line = f"{one.name}: {records.counts(states)}"
        trouble = status.troubles(one.members)
        words = {*states.values()}
        if status.lacks_something(one.members):
            yield Check("live", "bad", line, "; ".join(trouble))
        elif live and not trouble:
            yield Check("live", "ok", line)
        elif trouble or "pending" in words or "not needed" not in words:
            why = "; ".join(trouble) or "nothing is live: sglang-perf-patches status --all"
            yield Check("live", "look", line, why)
        else:
            yield Check("live", "-", f"{one.name}: none of the chosen patches is for this server")
        if live:
            done = [name for name in live if name in one.ran()]
            names = ", ".join(done) or "none yet"
            line = f"{one.name}: {len(done)} of {len(live)} live patches: {names}"
            if done or not one.is_server or trouble:
                yield Check("has run", "ok" if done else "-", line)
            else:
                change = "send it a request, or see who gains: sglang-perf-patches explain PATCH"
                yield Check("has run", "look", line, change)


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
        faults_of_upgrade(here.version if here else None, there.version),
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


def faults_of_upgrade(here: str | None, there: str) -> str:
    """The faults that an upgrade from `here` (None: nothing is installed) fixes or brings."""
    ours, theirs = of_release(here or ""), of_release(there)
    fixed = (one.text() for one in ours if one not in theirs)
    brought = (one.text() for one in theirs if here and one not in ours)
    parts = [
        asking.listed(f"Known faults that {there} fixes, if your server has them:", fixed),
        asking.listed(f"Known faults that {there} brings:", brought),
        faults_in_short(there),
    ]
    return "\n\n".join(filter(None, parts))


def faults_in_short(release: str) -> str:
    """How many known faults a release has, and how to see those of a server; "" for none."""
    count = len(of_release(release))
    if not count:
        return ""
    faults = "known faults" if count > 1 else "known fault"
    return render.filled(
        f"sglang {release} has {count} {faults}. Each affects some servers only. Those of yours: "
        "sglang-perf-patches doctor -- COMMAND. All: sglang-perf-patches help symptoms"
    )
