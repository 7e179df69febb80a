"""``status``: which patches are live in this user's sglang processes, one line per server."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ...telemetry import procfs, records, summary
from .. import render
from . import add_json, servers
from .servers import Running

PARSER: dict[str, Any] = {
    "epilog": "Exit code 1: a chosen patch, even one chosen only through `all`, is gated, refused, "
    "in conflict or failed in a process. `not needed` is fine."
}
_HIDDEN = ("selection", "prefix")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options: which servers, and how much detail."""
    pids = "show only these servers: the PID of the process that started the others"
    parser.add_argument("pids", nargs="*", type=int, metavar="PID", help=pids)
    parser.add_argument("--all", action="store_true", help="every patch of every process")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the states; exit code 1 if a chosen patch is in trouble in any process."""
    processes = [
        data
        for data in records.read_all(render.warn)
        if not args.pids or data["server"] in args.pids
    ]
    running = servers.from_records(processes)
    if args.json:
        shown = [{k: v for k, v in data.items() if k not in _HIDDEN} for data in processes]
        print(json.dumps({"processes": shown, "servers": [*map(_data, running)]}, indent=2))
    elif processes:
        print("\n\n".join(_server(one, show_all=args.all) for one in running))
    elif not args.pids:
        print("no running sglang process of this user has these patches")
    missing = sorted({*args.pids} - {data["server"] for data in processes})
    for pid in missing:
        why = f"process {pid} started no server with these patches"
        render.warn(why if procfs.start_token(pid) else f"no process {pid}")
    return 1 if missing or servers.lacks_something(processes) else 0


def _data(one: Running) -> dict[str, Any]:
    port = int(one.port) if one.port.isdecimal() else None
    return {"pid": one.pid, "is_server": one.is_server, "model": one.model, "port": port}


def _server(one: Running, *, show_all: bool) -> str:
    """The lines about a server."""
    members = one.members
    count = f"{len(members)} process{'es' if len(members) > 1 else ''}"
    ended = "" if one.pid in {data["pid"] for data in members} else ", its launcher has ended"
    states = summary.counts(summary.over_processes(members))
    first = min(members, key=lambda data: data["started"])
    since = datetime.fromtimestamp(first["started"]).astimezone().isoformat(" ", "seconds")
    parts = [f"{one.name}: {states} ({count}{ended})", f"  sglang {first['sglang']}, since {since}"]
    rows = [["  PROCESS", "PID", "LIVE", "HAVE RUN", "WHICH"]]
    for group in _groups(one):
        patches, ran = group.members[0]["patches"], group.ran()
        who = _who(group.members)
        if show_all:
            table = [["    PATCH", "STATE", "RUN", "WHY"]]
            for each in patches:
                has_run = "has run" if each["id"] in ran else "-"
                table.append([f"    {each['id']}", each["state"], has_run, each["reason"]])
            parts += ["  ".join(who), render.table(table)]
        else:
            live = [each["id"] for each in patches if each["state"] == "live"]
            counts = [str(len(live)), str(len(ran & {*live}))]
            rows.append([*who, *counts, ", ".join(live) or "-"])
    if not show_all:
        parts += [render.table(rows), *(f"  {line}" for line in servers.troubles(members))]
    return "\n".join(parts)


def _groups(one: Running) -> list[Running]:
    """A server's processes, grouped by role without its rank, and by the states of patches."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for data in one.members:
        states = tuple((each["id"], each["state"], each["reason"]) for each in data["patches"])
        role = re.sub(r"(?<=^scheduler).*", "", data["role"])
        groups.setdefault((role, states), []).append(data)
    return [one._replace(members=members) for members in groups.values()]


def _who(group: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """The roles of a group of processes, and their PIDs."""
    roles = sorted({data["role"] for data in group})
    name = roles[0] if len(roles) == 1 else f"{roles[0]} ... {roles[-1]}"
    count = f" ({len(group)})" if len(group) > 1 else ""
    return f"  {name}{count}", " ".join(str(data["pid"]) for data in group)
