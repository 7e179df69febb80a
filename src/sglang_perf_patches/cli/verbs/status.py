"""``status``: which patches are live in this user's sglang processes, one line per server."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from ...telemetry import procfs, records, summary
from .. import render
from . import add_json, servers

PARSER: dict[str, Any] = {
    "epilog": "Exit code 1: a chosen patch, even one chosen only through `all`, is gated, refused, "
    "in conflict or failed in a process. `not needed` is fine."
}
_HIDDEN = ("selection", "prefix")
_BAD_SHOWN = 10

Record = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options: which servers, and how much detail."""
    parser.add_argument(
        "pids",
        nargs="*",
        type=int,
        metavar="PID",
        help="show only these servers: the PID of the process that started the others",
    )
    parser.add_argument("--all", action="store_true", help="every patch of every process")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the states; exit code 1 if a chosen patch is in trouble in any process."""
    bad: list[str] = []
    processes = [
        data
        for data in records.read_all(bad.append)
        if not args.pids or data["server"] in args.pids
    ]
    more = len(bad) - _BAD_SHOWN
    for line in [*bad[:_BAD_SHOWN], *([f"and {more} more"] if more > 0 else [])]:
        render.warn(line)
    running = servers.from_records(processes)
    if args.json:
        shown = [{k: v for k, v in data.items() if k not in _HIDDEN} for data in processes]
        data = {"processes": shown, "servers": [one.data for one in running]}
        print(json.dumps(data, indent=2))
    elif processes:
        print("\n\n".join(_server(one, show_all=args.all) for one in running))
    elif not args.pids:
        print("no running sglang process of this user has these patches")
    missing = sorted({*args.pids} - {data["server"] for data in processes})
    for pid in missing:
        why = f"process {pid} started no server with these patches"
        render.warn(why if procfs.start_token(pid) else f"no process {pid}")
    return 1 if missing or servers.lacks_something(processes) else 0


def _server(one: servers.Running, *, show_all: bool) -> str:
    """The lines about a server."""
    members = one.members
    count = f"{len(members)} process{'es' if len(members) > 1 else ''}"
    ended = "" if one.pid in {data["pid"] for data in members} else ", its launcher has ended"
    states = summary.counts(summary.over_processes(members))
    first = min(members, key=lambda data: data["started"])
    since = datetime.fromtimestamp(first["started"]).astimezone().isoformat(" ", "seconds")
    parts = [f"{one.name}: {states} ({count}{ended})", f"  sglang {first['sglang']}, since {since}"]
    if show_all:
        parts += map(_table, _groups(members))
    else:
        parts.append(render.table([*_lines(members)]))
        parts += [f"  {line}" for line in servers.troubles(members)]
    return "\n".join(parts)


def _groups(members: Sequence[Record]) -> list[list[Record]]:
    """Groups of processes of the same role without its rank, with patches in the same states."""
    groups: dict[Any, list[Record]] = {}
    for data in members:
        states = tuple((each["id"], each["state"], each["reason"]) for each in data["patches"])
        role = re.sub(r"(?<=^scheduler).*", "", data["role"])
        groups.setdefault((role, states), []).append(data)
    return list(groups.values())


def _ran(group: Sequence[Record]) -> set[str]:
    """The patches that have run in any process of a group."""
    return {patch["id"] for data in group for patch in data["patches"] if patch["ran"]}


def _lines(members: Sequence[Record]) -> Iterator[list[str]]:
    """A row for each group: its kind, its PIDs, the live patches, and how many have run."""
    yield ["  PROCESS", "PID", "LIVE", "HAVE RUN", "WHICH"]
    for group in _groups(members):
        live = [patch["id"] for patch in group[0]["patches"] if patch["state"] == "live"]
        counts = [str(len(live)), str(len(_ran(group) & set(live)))]
        yield [*_who(group), *counts, ", ".join(live) or "-"]


def _table(group: Sequence[Record]) -> str:
    """Every patch of a group of processes."""
    rows = [["    PATCH", "STATE", "RUN", "WHY"]]
    for patch in group[0]["patches"]:
        ran = "has run" if patch["id"] in _ran(group) else "-"
        rows.append([f"    {patch['id']}", patch["state"], ran, patch["reason"]])
    shown = render.table(rows)
    return f"{'  '.join(_who(group))}\n{shown}"


def _who(group: Sequence[Record]) -> tuple[str, str]:
    """The roles of a group of processes, and their PIDs."""
    roles = sorted({data["role"] for data in group})
    name = roles[0] if len(roles) == 1 else f"{roles[0]} ... {roles[-1]}"
    count = f" ({len(group)})" if len(group) > 1 else ""
    return f"  {name}{count}", " ".join(str(data["pid"]) for data in group)
