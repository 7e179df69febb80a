"""``doctor`` without options: are patches installed, loaded, live, run; and what to change."""

from __future__ import annotations

import contextlib
import json
import platform
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import NamedTuple

from ... import __version__, gpu
from ...compat.source import Tree
from ...faults import of_release
from ...model.selection import Selection
from ...telemetry import records, summary
from .. import entry_point, render
from ..table import READY, entry
from . import any_is_lost, judged, known_faults, listing, selected, servers, tree_at

_PACKAGES = (
    *("sglang-kernel", "sgl-kernel", "torch", "triton", "flashinfer-python", "mlx", "mlx-lm"),
    *("transformers", "wrapt"),
)
"""Packages whose versions ``--json`` has, where they are installed."""


class Check(NamedTuple):
    """One check and its result."""

    check: str  # its name
    word: str  # ``ok``, ``look`` (worth a check), ``bad`` (something chosen is missing), or ``-``
    said: str  # what was found
    change: str = ""  # what to do about it


def run(*, as_json: bool, show_all: bool) -> int:
    """Print the checks; exit code 1 if a chosen patch is not available or not live in a server.

    Raises:
        TreeError: there is no sglang.
    """
    selection, tree = selected(), tree_at()
    here = f"sglang-perf-patches {__version__} next to sglang {tree.version}"
    installed = Check("installed", "ok", f"{here}, Python {platform.python_version()}")
    checks = [installed, _loaded(), _chosen(tree, selection), *_servers()]
    if as_json:
        data = {
            "sglang": {"version": tree.version, "path": str(tree.root)},
            "versions": {"sglang-perf-patches": __version__, **_versions()},
            "gpu": (driver := gpu.machine()) and driver._asdict(),
            "checks": [check._asdict() for check in checks],
            "faults": [one.data() for one in of_release(tree.version)],
        }
        print(json.dumps(data, indent=2))
    else:
        print("\n\n".join(filter(None, _text(checks, tree.version, show_all=show_all))))
    return 1 if any(check.word == "bad" for check in checks) else 0


def _versions() -> dict[str, str]:
    """The system, and the packages that matter to a patch."""
    versions = {"python": platform.python_version(), "system": platform.platform()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


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
        yield known_faults.in_short(release)


def _loaded() -> Check:
    """Whether a server loads the plugin by itself."""
    if note := entry_point.why_not_loaded_here():
        return Check("loaded", "look", "a server does not load the plugin by itself", note)
    return Check("loaded", "ok", f"a server loads the entry point {entry_point.NAME}")


def _chosen(tree: Tree, selection: Selection) -> Check:
    verdicts = judged(tree)
    by_patch = listing.prospects(selection, verdicts, is_here=True)
    words = [word for word, _ in by_patch.values()]
    line = f"{listing.counts(words)}, with SGLANG_PERF_PATCHES={selection.text or 'none'}"
    if any_is_lost(selection, verdicts):
        change = "SGLANG_PERF_PATCHES names what this sglang can't have: sglang-perf-patches list"
        return Check("chosen", "bad", line, change)
    if listing.REFUSED in words:
        refused = [*by_patch][words.index(listing.REFUSED)]
        return Check("chosen", "look", line, f"sglang-perf-patches explain {refused}")
    if READY not in words:
        change = "nothing is ready here: sglang-perf-patches list --all"
        return Check("chosen", "look", line, change)
    return Check("chosen", "ok", line)


def _servers() -> Iterator[Check]:
    """For each server, which patches are live and have run."""
    running = servers.from_records(records.read_all(render.warn))
    if not running:
        yield Check("live", "-", "no process of this user has patches; start a server first")
        yield Check("has run", "-", "no process of this user has patches")
    for one in running:
        if any(data["prefix"] != sys.prefix for data in one.members):
            where = f"it runs in another environment, {one.members[0]['prefix']}"
            yield Check("live", "-", f"{one.name}: {where}", "run doctor there")
            continue
        states = summary.over_processes(one.members)
        live = summary.in_state(states, "live")
        line = f"{one.name}: {summary.counts(states)}"
        trouble = servers.troubles(one.members)
        words = {*states.values()}
        if servers.lacks_something(one.members):
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
