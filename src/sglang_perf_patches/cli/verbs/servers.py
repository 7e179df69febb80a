"""This user's running servers: their processes, port and model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from ... import sets
from ...model import selection
from ...model.patch import by_id
from ...model.selection import UNAVAILABLE, SelectionError
from ...telemetry import procfs

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
    patches = by_id(sets.load())
    for data in members:
        try:
            choice = selection.parse(data.get("selection", "all"), patches)
        except SelectionError:
            continue
        states = ((each["id"], each["state"]) for each in data["patches"])
        if any(choice.is_chosen_but_unavailable(*state) for state in states):
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
