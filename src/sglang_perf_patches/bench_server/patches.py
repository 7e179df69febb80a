"""Which patches were live in a server's processes, and which of them had run."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..model.selection import Selection
from ..supervised import Supervised
from ..telemetry import records
from . import BenchError, redact
from .sides import Side

_PATIENCE_S = 6.0
_CHECK_S = 0.5
_FAILED = ("refused", "conflict", "failed")
_ROLES = ("launcher", "scheduler", "tokenizer", "detokenizer", "data")


@dataclass(frozen=True)
class LiveIn:
    """In how many processes of a role a patch was live and had run, over all boots of a side."""

    patch: str
    role: str
    live: int
    ran: int


def require_side(server: Supervised, side: Side) -> None:
    """Raise a BenchError if a stock server has live patches, or one that needs some has none."""
    records = _of(server)
    live = {one.patch for one in summary(records)}
    if live and not side.is_patched:
        raise BenchError(
            f"{', '.join(sorted(live))} was live although SGLANG_PERF_PATCHES was none: does "
            "the command set it?"
        )
    if side.needs_live and not records:
        raise BenchError(
            "no process of the server has a record of patches: is sglang-perf-patches installed "
            "next to the sglang that the command starts, and does the command leave "
            "SGLANG_PERF_PATCHES unchanged?"
        )
    if side.needs_live and not live:
        why = "; ".join(f"{id} is {why}" for id, why in failed(records).items())
        raise BenchError(f"no patch was live in it: {why or 'there is nothing to compare'}")


def of_server(server: Supervised, *, is_patched: bool) -> list[dict[str, Any]]:
    """The records of a server's processes, after its load.

    A record is written up to a second later than a patch runs. So a patched server's records are
    read for some seconds, until each live patch has run in some process.
    """
    deadline = time.monotonic() + (_PATIENCE_S if is_patched else 0)
    while True:
        records = _of(server)
        summed = summary(records)
        waiting = {one.patch for one in summed} - {one.patch for one in summed if one.ran}
        if (summed and not waiting) or time.monotonic() >= deadline:
            return records
        time.sleep(_CHECK_S)


def summary(records: Iterable[dict[str, Any]]) -> list[LiveIn]:
    """The live patches by role; those that have run come first."""
    ran: dict[tuple[str, str], list[bool]] = {}
    for record in records:
        # The role without its rank: ``scheduler`` for ``scheduler_TP0``; "other" for a script.
        role = record["role"].partition("_")[0].lower()
        role = role if role in _ROLES else "other"
        for state in record["patches"]:
            if state["state"] == "live":
                ran.setdefault((state["id"], role), []).append(state["ran"])
    rows = [LiveIn(*key, live=len(each), ran=sum(each)) for key, each in ran.items()]
    return sorted(rows, key=lambda one: (one.patch, -one.ran, one.role))


def failed(records: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Patch that was refused, in conflict or failed in any process → why."""
    return {
        state["id"]: f"{state['state']}: {redact.names(state['reason'])}"
        for record in records
        for state in record["patches"]
        if state["state"] in _FAILED
    }


def lost(records: Iterable[dict[str, Any]], selection: Selection) -> list[str]:
    """The patches that were chosen by name and that any process lacks."""
    states = (state for record in records for state in record["patches"])
    return sorted({s["id"] for s in states if selection.is_unavailable(s["id"], s["state"])})


def _of(server: Supervised) -> list[dict[str, Any]]:
    members = {process.pid for process in server.processes()}
    return [data for data in records.read_all() if data["pid"] in members]
