"""``status``: this user's running servers, and which patches are live in their processes."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple

from ...model.selection import UNAVAILABLE, SelectionError
from ...telemetry import procfs, records
from .. import render
from . import add_json, selected

PARSER: dict[str, Any] = {
    "epilog": "Exit code 1: a chosen patch, even one chosen only through `all`, is gated, refused, "
    "in conflict or failed in a process. `not needed` is fine."
}
_HIDDEN = ("selection", "prefix")
_PORT = "30000"  # sglang's own default
_ROLES = ("launcher", "scheduler", "tokenizer", "detokenizer", "data_parallel_controller")


class Running(NamedTuple):
    """A server, or another process with patches, with all processes that it started."""

    pid: int  # of the process that started the others
    members: Sequence[dict[str, Any]]  # the records of all of them
    is_server: bool  # False for a script with an Engine, or a test
    model: str  # its ``--model-path``; "" if the command has none
    port: str  # its ``--port`` or sglang's default; "" if the command names no model

    @property
    def name(self) -> str:
        """``server 12 (MODEL, port 30000)``."""
        label = ", ".join(filter(None, [self.model, self.port and f"port {self.port}"]))
        return f"{'server' if self.is_server else 'process'} {self.pid}{label and f' ({label})'}"

    def ran(self) -> set[str]:
        """The patches that have run in any of its processes."""
        return {each["id"] for data in self.members for each in data["patches"] if each["ran"]}


def from_records(records: Sequence[dict[str, Any]]) -> list[Running]:
    """The servers of records, which must be sorted by server."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model-path", "--model", nargs="?")
    parser.add_argument("--port", nargs="?")
    found = []
    for pid, group in groupby(records, key=lambda data: data["server"]):
        members = list(group)
        is_server = any(data["role"].lower().startswith(_ROLES) for data in members)
        given = parser.parse_known_args(procfs.command(pid) if is_server else [])[0]
        port = given.port or (_PORT if given.model_path else "")
        found.append(Running(pid, members, is_server, given.model_path or "", port))
    return found


def lacks_something(members: Sequence[dict[str, Any]]) -> bool:
    """Whether a chosen patch, also one that only ``all`` selected, is in trouble in any process."""
    for data in members:
        with contextlib.suppress(SelectionError):  # another version's names
            is_lost = selected(data["selection"]).is_chosen_but_unavailable
            if any(is_lost(each["id"], each["state"]) for each in data["patches"]):
                return True
    return False


def troubles(members: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each reason for which patches are in trouble: ``a, b are gated: …``."""
    ids: dict[tuple[str, str], dict[str, None]] = {}
    for data in members:
        for patch in data["patches"]:
            if patch["state"] in UNAVAILABLE:
                ids.setdefault((patch["state"], patch["reason"]), {})[patch["id"]] = None
    return [
        f"{', '.join(names)} {'are' if len(names) > 1 else 'is'} {state}: {reason}"
        for (state, reason), names in ids.items()
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options: which servers, and how much detail."""
    pids = "show only these servers: the PID of the process that started the others"
    parser.add_argument("pids", nargs="*", type=int, metavar="PID", help=pids)
    parser.add_argument("--all", action="store_true", help="every patch of every process")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the states; exit code 1 if a chosen patch is in trouble in any process."""
    found = records.read_all(render.warn)
    processes = [data for data in found if not args.pids or data["server"] in args.pids]
    running = from_records(processes)
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
    return 1 if missing or lacks_something(processes) else 0


def _data(one: Running) -> dict[str, Any]:
    port = int(one.port) if one.port.isdecimal() else None
    return {"pid": one.pid, "is_server": one.is_server, "model": one.model, "port": port}


def _server(one: Running, *, show_all: bool) -> str:
    members = one.members
    count = f"{len(members)} process{'es' if len(members) > 1 else ''}"
    ended = "" if one.pid in {data["pid"] for data in members} else ", its launcher has ended"
    states = records.counts(records.over_processes(members))
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
        parts += [render.table(rows), *(f"  {line}" for line in troubles(members))]
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
    roles = sorted({data["role"] for data in group})
    name = roles[0] if len(roles) == 1 else f"{roles[0]} ... {roles[-1]}"
    count = f" ({len(group)})" if len(group) > 1 else ""
    return f"  {name}{count}", " ".join(str(data["pid"]) for data in group)
