"""The records of a server's processes summed up: one state per patch, and a line of counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..model.feature import cause

SEVERITY = (
    "failed",
    "conflict",
    "refused",
    "gated",
    "not needed",
    "live",
    "pending",
    "built-in",
    "absent",
    "off",
)
_ALWAYS_COUNTED = ("live", "pending", "refused")
_COUNTED_IF_ANY = ("conflict", "failed", "gated")


def over_processes(processes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Patch → its state in a server: the strongest one of any process (see `SEVERITY`).

    So trouble in one process is trouble, else live in one is live. ``not needed`` is stronger than
    ``live`` and ``pending``: all processes have the same arguments, but some never publish them.

    Args:
        processes: records, as `records.read_all` gives them.
    """
    states: dict[str, str] = {}
    for process in processes:
        for patch in process["patches"]:
            states[patch["id"]] = min(states.get(patch["id"], "off"), patch["state"], key=_strength)
    return states


def counts(states: Mapping[str, str]) -> str:
    """``live 8, pending 4, refused 0``, and the counts of other trouble if there is any."""
    number = Counter(states.values())
    parts = [f"{state} {number[state]}" for state in _ALWAYS_COUNTED]
    parts += [f"{state} {number[state]}" for state in _COUNTED_IF_ANY if number[state]]
    return ", ".join(parts)


def in_state(states: Mapping[str, str], word: str) -> Sequence[str]:
    """The patches that are in a state, in declared order."""
    return [patch_id for patch_id, state in states.items() if state == word]


def gated(processes: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Cause, as `model.feature.cause` words it → the patches gated for it in any process."""
    by_cause: dict[str, list[str]] = {}
    for process in processes:
        for patch in process["patches"]:
            if patch["state"] == "gated":
                ids = by_cause.setdefault(cause(patch["reason"]), [])
                ids += [] if patch["id"] in ids else [patch["id"]]
    return by_cause


def gated_lines(by_cause: Mapping[str, Sequence[str]]) -> list[str]:
    """``gated by tensor parallelism: a, b`` for each cause that `gated` returns."""
    return [f"gated {why}: {', '.join(ids)}" for why, ids in by_cause.items()]


def _strength(state: str) -> int:
    return (*SEVERITY, state).index(state)
