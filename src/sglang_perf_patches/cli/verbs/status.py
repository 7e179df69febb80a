"""``status``: what is live in this user's running sglang processes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from ... import sets
from ...model import selection
from ...model.patch import by_id
from ...model.selection import SelectionError
from ...seen import records as record
from . import add_json, table

_FAILED_STATES = {"refused", "conflict", "failed"}


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser("status", help="what is live in this user's running sglang processes")
    add_json(parser)
    parser.set_defaults(function=_status)


def _status(given: argparse.Namespace) -> int:
    processes = record.read_all()
    if given.json:
        shown = [{k: v for k, v in data.items() if k != "selection"} for data in processes]
        print(json.dumps({"processes": shown}, indent=2))
    elif not processes:
        print("no running sglang process of this user has patches of ours")
    else:
        print("\n\n".join(_servers_text(processes)))
    return 1 if any(_has_failed(data) for data in processes) else 0


def _servers_text(processes: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The processes one by one, those of a server below a line for it."""
    for server, members in groupby(processes, key=lambda data: data["server"]):
        of_server = list(members)
        count = f"{len(of_server)} process{'es' if len(of_server) > 1 else ''}"
        ended = "" if server in {data["pid"] for data in of_server} else ", its launcher has ended"
        yield f"server {server}: {count}{ended}"
        yield from map(_status_text, of_server)


def _status_text(data: dict[str, Any]) -> str:
    started = datetime.fromtimestamp(data["started"]).astimezone().isoformat(" ", "seconds")
    head = f"{data['pid']}  {data['role']}  sglang {data['sglang']}  since {started}"
    rows = [
        ["  " + state["id"], state["state"], "has run" if state["ran"] else "-", state["reason"]]
        for state in data["patches"]
        if state["state"] != "off"
    ]
    return f"{head}\n{table([['  PATCH', 'STATE', 'RUN', 'WHY'], *rows])}"


def _has_failed(data: dict[str, Any]) -> bool:
    """Whether a process lacks what was chosen for it by name."""
    try:
        chosen = selection.parse(data.get("selection", "all"), by_id(sets.load()))
    except SelectionError:
        return False
    return any(
        (state["state"] in _FAILED_STATES and state["id"] in chosen.by_name)
        or (state["state"] == "absent" and state["id"] in chosen.in_full)
        for state in data["patches"]
    )
