"""A small model of dummy weights, and turns on one GPU for several runs of `transfer_load.py`.

Runs with the same $SWA_TURNS, a folder, wait for each other until $SWA_SIDES of them have booted.
Then their loads run one at a time, so that what is compared was measured within the same minutes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rig"))

from shapes import SHAPES

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK", "1")
os.environ.setdefault("SGLANG_DISABLE_CUDNN_CHECK", "1")

CONFIG: dict[str, Any] = dict(SHAPES["gpt-oss-small"].config)


def live(root: int) -> list[str]:
    """What is not off in a process and its children, according to the project's own command."""
    command = [sys.executable, "-m", "sglang_perf_patches", "status", "--json"]
    told = subprocess.run(command, capture_output=True, text=True).stdout or "{}"
    return sorted(
        {
            f"{process['role']}: {patch['id']}: {patch['state']}"
            for process in json.loads(told).get("processes", [])
            for patch in process["patches"]
            if patch["id"].startswith("swa.")
            and patch["state"] != "off"
            and root in _ancestors(process["pid"])
        }
    )


def _ancestors(process: int) -> Iterator[int]:
    """A process and those that started it."""
    while process > 1:
        yield process
        try:
            stat = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            return
        process = int(stat.rpartition(")")[2].split()[1])


def wait_for_all(limit_s: float = 100.0, what: str = "ready") -> None:
    """Wait until every Engine that takes turns with this one has booted, or has come so far."""
    folder = os.environ.get("SWA_TURNS")
    if not folder:
        return
    (Path(folder) / f"{what}.{os.getpid()}").touch()
    until = time.monotonic() + limit_s
    sides = int(os.environ.get("SWA_SIDES", "1"))
    while len(list(Path(folder).glob(f"{what}.*"))) < sides and time.monotonic() < until:
        time.sleep(0.5)


@contextlib.contextmanager
def turn(what: str = "lock") -> Iterator[None]:
    """Have the GPU alone among those that take turns at it."""
    folder = os.environ.get("SWA_TURNS")
    if not folder:
        yield
        return
    with (Path(folder) / what).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    time.sleep(0.05)  # so that one who waits gets the lock
