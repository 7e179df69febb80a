"""Reads what `sglang-perf-patches` reports about a running server."""

import json
import subprocess
import time
from typing import Any

from linux_mlx.environments import variables
from linux_mlx.patience import limit_s
from linux_mlx.processes import Failure
from linux_mlx.server import Server


def report(server: Server, *arguments: str, shown: bool = False) -> str:
    """What the command prints beside the server; if `shown`, to our stdout, as wide as that is."""
    done = subprocess.run(
        [server.environment.script("sglang-perf-patches"), *arguments],
        env=variables(SGLANG_PERF_PATCHES=server.selection, XDG_RUNTIME_DIR=server.runtime),
        text=True,
        stdout=None if shown else subprocess.PIPE,
        check=False,
    )
    if done.returncode > 1:  # 1 concerns the selection; the output has details
        raise Failure(f"sglang-perf-patches {' '.join(arguments)} ended with {done.returncode}")
    return done.stdout or ""


def processes(server: Server) -> list[dict[str, Any]]:
    """The entries in `status` for this server's processes only."""
    status = json.loads(report(server, "status", "--json"))
    return [process for process in status["processes"] if process["server"] == server.group]


def live_and_run(server: Server, *, patience_s: float = 0) -> list[str]:
    """The patches that are live in the server's scheduler and have run there.

    A process records once a second what has run, so this polls for up to `patience_s` seconds (more
    on a busy machine): until there is something, and no more in the next look.
    """
    deadline = time.monotonic() + limit_s(patience_s)
    ids: list[str] = []
    while True:
        before = ids
        ids = [
            str(patch["id"])
            for process in processes(server)
            if "scheduler" in process["role"]
            for patch in process["patches"]
            if patch["state"] == "live" and patch["ran"]
        ]
        if (ids and ids == before) or time.monotonic() > deadline:
            return ids
        time.sleep(1.5 if ids else 0.5)
