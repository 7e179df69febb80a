"""Throwaway processes that keep records, and ``status`` asked about them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from throwaway import Throwaway

SERVE = """
import os, sys
from throwaway_patches import *
import sglang_perf_patches as ours
how = os.environ.get("BAD", "breaks")
use(STEP, declare("one.bad", install=how, targets=(f"{A}:Worker.step", f"{B}:Caller.call")))
import logging
logging.basicConfig(level=logging.INFO)
from sglang_perf_patches.telemetry import recorder
recorder._TICK_S = 0.1
ours.activate()
import sglang.srt.a as a, sglang.srt.b
print("up", flush=True)
for line in sys.stdin:
    print(a.Worker().step(1), flush=True)
"""

STATUS = """
import sys
from throwaway_patches import *
use(STEP, declare("one.bad", install="breaks", targets=(f"{A}:Worker.step", f"{B}:Caller.call")))
from sglang_perf_patches.cli import main
look_nowhere_else()
sys.exit(main(["status", *sys.argv[1:]]))
"""
STATUS_COMMAND = (sys.executable, "-c", STATUS)
"""``status`` as a user calls it, but of the throwaway package's processes only."""


def ask(process: subprocess.Popen[str], line: str = "") -> str:
    """What a process prints for a line, or without being asked."""
    assert process.stdin
    assert process.stdout
    if line:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


@contextmanager
def serving(
    throwaway: Throwaway,
    *words: str | Path,
    stderr: IO[str] | int | None = subprocess.PIPE,
    is_up: str = "up",
    **variables: str | None,
) -> Iterator[subprocess.Popen[str]]:
    """A process with `SERVE` or other words of Python, which prints `is_up`; it is killed."""
    command = [sys.executable, *(words or ("-c", SERVE))]
    with throwaway.start(command, stderr, **variables) as process:
        try:
            assert ask(process) == is_up
            yield process
        finally:
            with suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, signal.SIGKILL)


def status(throwaway: Throwaway, *words: str, **variables: str | None) -> tuple[int, str, str]:
    done = throwaway.execute(*STATUS_COMMAND, *words, **variables)
    return done.returncode, done.stdout, done.stderr


def processes(throwaway: Throwaway, **variables: str | None) -> list[dict[str, object]]:
    _, out, _ = status(throwaway, "--json", **variables)
    listed: list[dict[str, object]] = json.loads(out)["processes"]
    return listed


def states(process: dict[str, object]) -> dict[str, tuple[str, bool]]:
    patches = process["patches"]
    assert isinstance(patches, list)
    return {patch["id"]: (patch["state"], patch["ran"]) for patch in patches}


def written(folder: Path) -> list[Path]:
    """The records in a folder; one that is being written has another name until it is whole."""
    return [path for path in folder.iterdir() if path.suffix != ".part"]
