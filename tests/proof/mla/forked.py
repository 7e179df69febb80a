"""Forked processes that are the ranks of a server, with a process group of gloo."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import distributed

from sglang_perf_patches.verify.comparing import require
from tests.proof.swa.window_server import limit

Play = Callable[[int, dict[str, Any]], None]
"""What a rank does: called in its process with the rank, and with what it is to fill."""


def ranks(count: int, play: Play, killed: int | None = None) -> list[dict[str, Any]]:
    """What each of `count` ranks tells, as `rank_of` does, but for the one that `play` kills."""
    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for rank in range(count):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    limit()
                    told = rank_of(rank, count, Path(folder), play)
                    (Path(folder) / f"told.{rank}").write_text(json.dumps(told), "utf-8")
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            pids.append(pid)
        codes = [os.waitpid(pid, 0)[1] for pid in pids]
        wanted = [signal.SIGKILL if rank == killed else 0 for rank in range(count)]
        require(codes == wanted, f"a rank failed: {codes}")
        files = [Path(folder) / f"told.{rank}" for rank in range(count) if rank != killed]
        every: list[dict[str, Any]] = [json.loads(file.read_text("utf-8")) for file in files]
    raised = [each["raised"] for each in every]
    require(killed is not None or not any(raised), f"a rank raised: {raised}")
    return every


def rank_of(rank: int, count: int, folder: Path, play: Play) -> dict[str, Any]:
    """Play one rank of `count`, which meet in a folder.

    What `play` fills comes back, with ``raised``, what ended it, and ``at``, when.
    """
    distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=count)
    told: dict[str, Any] = {"raised": "", "at": 0.0}
    try:
        play(rank, told)
        distributed.barrier()
    except RuntimeError as error:
        told |= {"raised": str(error), "at": time.monotonic()}
    return told
