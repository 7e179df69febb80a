"""Lines in a server's log: gated patches, and once it is ready, live ones and known faults.

The server's topmost process logs them, about all processes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from ..model.feature import MISSING, cause
from . import records

logger = logging.getLogger("sglang_perf_patches")

_HTTP_SERVER = "sglang.srt.entrypoints.http_server"
_SETTLED_CHECKS = 4
_MANY_CHECKS = 24
"""For a launcher, and while nothing is live: the server may still be importing its modules."""


class StartupLog:
    """Logs which patches are live, once the server is ready and the states no longer change."""

    def __init__(self) -> None:
        self.is_made = False  # whether the final line was logged
        self._logged: set[str] = set()  # gated patches: each is logged once
        self._before: Mapping[str, str] = {}
        self._checks = 0

    def check(self, processes: Sequence[Mapping[str, Any]]) -> None:
        """Log what is due, once a second; `processes` are the records, this process's first."""
        if self.is_made:
            return
        gated = _gated(processes, self._logged)
        for why, ids in gated.items():
            logger.warning("sglang-perf-patches: gated %s: %s", why, ", ".join(ids))
        self._logged.update(*gated.values())
        states = records.over_processes(processes)
        role = processes[0]["role"]
        is_ready = _is_ready(role)
        if is_ready is None:
            # This process can't tell readiness, so a number of checks without a change counts.
            self._checks = self._checks + 1 if states == self._before else 0
            self._before = states
            enough = _MANY_CHECKS if role == "launcher" else _SETTLED_CHECKS
            is_ready = self._checks >= enough and "live" in states.values()
            is_long = self._checks == _MANY_CHECKS
            if is_long and not is_ready and "gated" in states.values():
                # Not final: if patches go live later, the line is logged again.
                logger.info(line(processes, states))
        if is_ready:
            self.is_made = True
            logger.info(line(processes, states))
            release, live = processes[0]["sglang"], records.in_state(states, "live")
            for text in _known_faults(release, live):
                logger.warning("sglang-perf-patches: known fault of sglang %s: %s", release, text)


def _gated(
    processes: Iterable[Mapping[str, Any]], without: Container[str] = ()
) -> dict[str, dict[str, None]]:
    """Cause, as `model.feature.cause` words it → the patches gated for it in any process."""
    by_cause: dict[str, dict[str, None]] = {}
    for process in processes:
        for patch in process["patches"]:
            if patch["state"] == "gated" and patch["id"] not in without:
                by_cause.setdefault(cause(patch["reason"]), {})[patch["id"]] = None
    return by_cause


def line(processes: Sequence[Mapping[str, Any]], states: Mapping[str, str]) -> str:
    """``… server PID with N more: COUNTS; live on sglang RELEASE: PATCHES``."""
    first = processes[0]
    what = "server" if first["role"] == "launcher" else "process"
    others = f" with {len(processes) - 1} more" if len(processes) > 1 else ""
    names = ", ".join(records.in_state(states, "live")) or "none"
    gated = [f"gated {why}: {', '.join(ids)}" for why, ids in _gated(processes).items()]
    return (
        f"sglang-perf-patches: {what} {first['pid']}{others}: {records.counts(states)}; "
        f"live on sglang {first['sglang']}: {'; '.join([names, *gated])}"
    )


def _is_ready(role: str) -> bool | None:
    """Whether sglang's HTTP server in this process is up; None if this process can't tell.

    sglang sets its tokenizer manager's ``server_status`` to ``Up`` after the warm-up request.
    """
    module = sys.modules.get(_HTTP_SERVER)
    state = getattr(module, "_global_state", None)
    if module is None or (state is None and role != "launcher"):
        return None
    manager = getattr(state, "tokenizer_manager", None)
    if manager is None:
        return False
    # With several tokenizer workers the launcher has a router here, without a status.
    status = getattr(getattr(manager, "server_status", None), "name", None)
    return None if status is None else status == "Up"


def _known_faults(release: str, live: Sequence[str]) -> list[str]:
    """A sentence on each known fault of a release that this server has."""
    from .. import faults  # read once, when the server has started
    from ..live.published import published

    server = published()
    if server.read("device") is MISSING:  # this process publishes no arguments
        return []
    found = faults.found(release, faults.conditions(server), live)
    return [one.text(is_sure=is_sure) for one, is_sure in found]
