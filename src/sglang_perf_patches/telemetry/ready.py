"""Lines in a server's log: what is gated, and, when it is ready for requests, what is live.

They are about all processes of the server, and logged by the topmost.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from . import summary

logger = logging.getLogger("sglang_perf_patches")

_HTTP_SERVER = "sglang.srt.entrypoints.http_server"
_SETTLED_LOOKS = 4
_SETTLED_LOOKS_OF_LAUNCHER = 24
_SETTLED_LOOKS_WITHOUT = 24
"""While nothing is live: a server's modules may still be being imported."""


class Announcement:
    """The line that the topmost process of a server logs, once what it says is settled.

    Attributes:
        is_made: whether it need not be logged again.
    """

    def __init__(self) -> None:
        self.is_made = False
        self._told: set[str] = set()
        self._before: Mapping[str, str] = {}
        self._looks = 0

    def look(self, processes: Sequence[Mapping[str, Any]]) -> None:
        """Log the line if its time has come.

        Args:
            processes: the records of the server's processes, this one's first. It is called about
                once a second.
        """
        if self.is_made:
            return
        self._tell_gated(processes)
        states = summary.over_processes(processes)
        role = processes[0]["role"]
        is_ready = _is_ready(role)
        if is_ready is None:
            # This process does not report readiness: count some checks without a change as ready.
            self._looks = self._looks + 1 if states == self._before else 0
            self._before = states
            enough = _SETTLED_LOOKS_OF_LAUNCHER if role == "launcher" else _SETTLED_LOOKS
            is_ready = self._looks >= enough and bool(summary.in_state(states, "live"))
            if (
                self._looks == _SETTLED_LOOKS_WITHOUT
                and not is_ready
                and summary.in_state(states, "gated")
            ):
                # It may still change: what is live then has its line too.
                logger.info(line(processes, states))
        if is_ready:
            self.is_made = True
            logger.info(line(processes, states))

    def _tell_gated(self, processes: Sequence[Mapping[str, Any]]) -> None:
        """Log each gated patch once, those of one reason in one line."""
        by_cause = {
            cause: new
            for cause, ids in summary.gated(processes).items()
            if (new := [patch_id for patch_id in ids if patch_id not in self._told])
        }
        for one in summary.gated_lines(by_cause):
            logger.warning("sglang-perf-patches: %s", one)
        self._told.update(*by_cause.values())


def line(processes: Sequence[Mapping[str, Any]], states: Mapping[str, str]) -> str:
    """The line that is logged."""
    first = processes[0]
    what = "server" if first["role"] == "launcher" else "process"
    others = f" with {len(processes) - 1} more" if len(processes) > 1 else ""
    names = ", ".join(summary.in_state(states, "live")) or "none"
    gated = summary.gated_lines(summary.gated(processes))
    return (
        f"sglang-perf-patches: {what} {first['pid']}{others}: {summary.counts(states)}; "
        f"live on sglang {first['sglang']}: "
        f"{'; '.join([names, *gated])}"
    )


def _is_ready(role: str) -> bool | None:
    """Whether sglang's HTTP server in this process is up; None if there is none that tells.

    sglang sets ``server_status`` of its tokenizer manager to ``Up`` when the warm-up request has
    been answered. It is only read here.
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
