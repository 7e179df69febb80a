"""``doctor`` without options: are patches installed, loaded, live, run; and what to change."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Literal

from ... import __version__
from ...compat.source import Tree
from ...faults import Found, of_release
from ...model.feature import flag_in
from ...model.selection import TROUBLE, Selection
from ...telemetry import records, summary
from .. import entry_point, render
from ..table import READY
from . import (
    any_is_lost,
    judged,
    known_faults,
    listing,
    selected,
    servers,
    stock_switches,
    tree_at,
)

_COLOURS = {"ok": "green", "look": "yellow", "bad": "red"}


@dataclass(frozen=True)
class Check:
    """One check and its result.

    Attributes:
        check: its name.
        word: ``ok``; ``look``: worth a check; ``bad``: something chosen is missing; ``-``: does not
            apply here.
        said: what was found.
        change: what to do about it; "" for nothing.
    """

    check: str
    word: Literal["ok", "look", "bad", "-"]
    said: str
    change: str = ""


def run(*, as_json: bool) -> int:
    """Print the checks; exit code 1 if a chosen patch is not available or not live in a server.

    Raises:
        TreeError: there is no sglang.
    """
    selection, tree = selected(), tree_at()
    checks = [_installed(tree), _loaded(tree), *_chosen(tree, selection), *_servers()]
    switches = stock_switches.of(tree, is_here=True)
    is_bad = any(check.word == "bad" for check in checks)
    if as_json:
        data = {
            "sglang": {"version": tree.version, "path": str(tree.root)},
            "checks": [asdict(check) for check in checks],
            "stock_switches": [one.data for one in switches],
            "faults": [Found(one, is_sure=False).data for one in of_release(tree.version)],
        }
        print(json.dumps(data, indent=2))
    else:
        parts = [*_text(checks), known_faults.in_short(tree.version)]
        print("\n\n".join(filter(None, [*parts, stock_switches.text(switches, "here")])))
    return 1 if is_bad else 0


def _text(checks: list[Check]) -> Iterator[str]:
    """The conclusion, the checks, and what to change."""
    bad = [check for check in checks if check.word in {"bad", "look"}]
    yield f"to check: {', '.join(check.check for check in bad)}" if bad else "all is well"
    rows = [["CHECK", "", "WHAT WAS FOUND"]]
    rows += [[check.check, check.word, check.said] for check in checks]
    yield render.table(rows, column=1, colours=_COLOURS)
    changes = [f"  {check.check}: {check.change}" for check in checks if check.change]
    if changes:
        yield "What to change:\n" + "\n".join(changes)


def _installed(tree: Tree) -> Check:
    line = f"sglang-perf-patches {__version__} next to sglang {tree.version}"
    return Check("installed", "ok", f"{line}, Python {platform.python_version()}")


def _loaded(tree: Tree) -> Check:
    """Whether a server loads the plugin by itself."""
    note = entry_point.obstacle(tree)
    if note:
        return Check("loaded", "look", "a server does not load the plugin by itself", note)
    if not metadata.entry_points(group=entry_point.GROUP, name=entry_point.NAME):
        change = "install this package with pip, or start the server with `sglang-perf-patches run`"
        return Check("loaded", "look", f"no entry point {entry_point.NAME} is installed", change)
    return Check("loaded", "ok", f"a server loads the entry point {entry_point.NAME}")


def _chosen(tree: Tree, selection: Selection) -> Iterator[Check]:
    verdicts = judged(tree)
    by_patch = listing.prospects(selection, verdicts, is_here=True)
    counted = listing.counts(word for word, _ in by_patch.values())
    line = f"{counted}, with SGLANG_PERF_PATCHES={selection.text or 'none'}"
    lost = any_is_lost(selection, verdicts)
    refused = [name for name, (word, _) in by_patch.items() if word == listing.REFUSED]
    if lost:
        change = "SGLANG_PERF_PATCHES names what this sglang can't have: sglang-perf-patches list"
        yield Check("chosen", "bad", line, change)
    elif refused:
        yield Check("chosen", "look", line, f"sglang-perf-patches explain {refused[0]}")
    elif not any(word == READY for word, _ in by_patch.values()):
        yield Check("chosen", "look", line, "nothing is ready here: sglang-perf-patches list --all")
    else:
        yield Check("chosen", "ok", line)


def _servers() -> Iterator[Check]:
    """For each server, which patches are live and have run."""
    running = servers.of(records.read_all())
    if not running:
        yield Check("live", "-", "no process of this user has patches; start a server first")
        yield Check("has run", "-", "no process of this user has patches")
    for one in running:
        if not one.is_of_this_environment:
            where = f"it runs in another environment, {one.members[0]['prefix']}"
            yield Check("live", "-", f"{one.name}: {where}; run doctor there")
            continue
        states = summary.over_processes(one.members)
        live = summary.in_state(states, "live")
        line = f"{one.name}: {summary.counts(states)}"
        trouble = [
            f"{name} is {word}: {summary.reason(one.members, name, word)}"
            for name, word in states.items()
            if word in TROUBLE - {"gated"}
        ]
        trouble += _gates(one.members)
        if servers.lacks_something(one.members):
            yield Check("live", "bad", line, "; ".join(trouble))
        elif not live and not trouble and _concerns_none(states):
            yield Check("live", "-", f"{one.name}: none of the chosen patches is for this server")
        elif trouble or not live:
            why = "; ".join(trouble) or "nothing is live: sglang-perf-patches status --all"
            yield Check("live", "look", line, why)
        else:
            yield Check("live", "ok", line)
        if live:
            yield _has_run(one, live, is_all=not trouble)


def _concerns_none(states: Mapping[str, str]) -> bool:
    """Whether every chosen patch is without use on a server."""
    words = {*states.values()}
    return "not needed" in words and "pending" not in words


def _gates(members: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each cause of gated patches, with the flag behind it."""
    for cause, ids in summary.gated(members).items():
        flag = flag_in(summary.reason(members, ids[0], "gated"))
        yield f"gated {cause}{flag and f' ({flag})'}: {', '.join(ids)}"


def _has_run(one: servers.Running, live: Any, *, is_all: bool) -> Check:
    """Whether any live patch has run, and what to do if none has.

    Args:
        one: the server.
        live: the ids of its live patches.
        is_all: whether every patch that should be live is.
    """
    ran = {patch["id"] for data in one.members for patch in data["patches"] if patch["ran"]}
    done = [name for name in live if name in ran]
    line = f"{one.name}: {len(done)} of {len(live)} live patches: {', '.join(done) or 'none yet'}"
    if done or not one.is_server or not is_all:
        return Check("has run", "ok" if done else "-", line)
    return Check(
        "has run",
        "look",
        line,
        "send it a request, or see who gains: sglang-perf-patches explain PATCH",
    )
