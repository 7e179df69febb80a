"""This user's running servers: their processes, port and model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ... import sets
from ...model import selection
from ...model.patch import by_id
from ...model.selection import UNAVAILABLE, SelectionError
from ...telemetry import procfs

_PORT = "30000"  # sglang's own default
_ROLES = ("launcher", "scheduler", "tokenizer", "detokenizer", "data_parallel_controller")


@dataclass(frozen=True)
class Running:
    """A server, or another process with patches, with all processes that it started.

    Attributes:
        pid: of the process that started the others.
        members: the records of all of them.
        is_server: False for a script with an Engine, or a test.
        model: its ``--model-path``; "" if the command has none.
        port: its ``--port`` or sglang's default; "" if the command names no model.
    """

    pid: int
    members: Sequence[dict[str, Any]]
    is_server: bool
    model: str
    port: str

    @property
    def is_of_this_environment(self) -> bool:
        """Whether it runs in the Python environment of this process."""
        return all(data["prefix"] == sys.prefix for data in self.members)

    @property
    def name(self) -> str:
        """``server 12 (MODEL, port 30000)``."""
        label = ", ".join(filter(None, [self.model, self.port and f"port {self.port}"]))
        return f"{'server' if self.is_server else 'process'} {self.pid}{label and f' ({label})'}"

    @property
    def data(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"pid": self.pid, "is_server": self.is_server, "model": self.model} | {
            "port": int(self.port) if self.port.isdecimal() else None
        }


def from_records(records: Sequence[dict[str, Any]]) -> list[Running]:
    """The servers of records, which must be sorted by server."""
    return [
        _running(server, list(members))
        for server, members in groupby(records, key=lambda data: data["server"])
    ]


def lacks_something(members: Sequence[dict[str, Any]]) -> bool:
    """Whether a chosen patch, also one that only ``all`` selected, is in trouble in any process."""
    return any(_lacks(data) for data in members)


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


def _lacks(data: dict[str, Any]) -> bool:
    try:
        choice = selection.parse(data.get("selection", "all"), by_id(sets.load()))
    except SelectionError:
        return False
    return any(
        choice.is_chosen_but_unavailable(state["id"], state["state"]) for state in data["patches"]
    )


def _running(pid: int, members: Sequence[dict[str, Any]]) -> Running:
    is_server = any(data["role"].lower().startswith(_ROLES) for data in members)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model-path", "--model", nargs="?")
    parser.add_argument("--port", nargs="?")
    given = parser.parse_known_args(procfs.command(pid) if is_server else [])[0]
    port = given.port or (_PORT if given.model_path else "")
    return Running(pid, members, is_server, given.model_path or "", port)
