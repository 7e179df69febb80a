"""Lines in a server's log: gated patches, and once it is ready, live ones and known faults.

The server's topmost process logs them, about all processes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import summary

logger = logging.getLogger("sglang_perf_patches")

_HTTP_SERVER = "sglang.srt.entrypoints.http_server"
_SETTLED_CHECKS = 4
_SETTLED_CHECKS_OF_LAUNCHER = 24
_SETTLED_CHECKS_WITHOUT = 24
"""Longer while nothing is live, because the server may still be importing its modules."""

known_faults: Callable[[str, Sequence[str]], Iterable[str]] | None = None
"""Gives a sentence on each known fault that this server has, from its release and the ids of live
patches. The package sets it at an activation."""


class StartupLog:
    """Logs which patches are live, once the server is ready and the states no longer change.

    Attributes:
        is_made: whether the final line was logged.
    """

    def __init__(self) -> None:
        self.is_made = False
        self._logged: set[str] = set()
        self._before: Mapping[str, str] = {}
        self._checks = 0

    def check(self, processes: Sequence[Mapping[str, Any]]) -> None:
        """Log what is due. Call it about once a second.

        Args:
            processes: the records of the server's processes, this one's first.
        """
        if self.is_made:
            return
        self._log_gated(processes)
        states = summary.over_processes(processes)
        role = processes[0]["role"]
        is_ready = _is_ready(role)
        if is_ready is None:
            # This process can't tell readiness, so a number of checks without a change counts.
            self._checks = self._checks + 1 if states == self._before else 0
            self._before = states
            enough = _SETTLED_CHECKS_OF_LAUNCHER if role == "launcher" else _SETTLED_CHECKS
            is_ready = self._checks >= enough and bool(summary.in_state(states, "live"))
            if (
                self._checks == _SETTLED_CHECKS_WITHOUT
                and not is_ready
                and summary.in_state(states, "gated")
            ):
                # Not final: if patches go live later, the line is logged again.
                logger.info(line(processes, states))
        if is_ready:
            self.is_made = True
            logger.info(line(processes, states))
            release = processes[0]["sglang"]
            live = summary.in_state(states, "live")
            for text in known_faults(release, live) if known_faults else ():
                logger.warning("sglang-perf-patches: known fault of sglang %s: %s", release, text)

    def _log_gated(self, processes: Sequence[Mapping[str, Any]]) -> None:
        """Log each gated patch once, patches with the same cause in one line."""
        by_cause = {
            cause: new
            for cause, ids in summary.gated(processes).items()
            if (new := [patch_id for patch_id in ids if patch_id not in self._logged])
        }
        for one in summary.gated_lines(by_cause):
            logger.warning("sglang-perf-patches: %s", one)
        self._logged.update(*by_cause.values())


def line(processes: Sequence[Mapping[str, Any]], states: Mapping[str, str]) -> str:
    """``… server PID with N more: COUNTS; live on sglang RELEASE: PATCHES``."""
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
