"""Throwaway processes that keep records, and ``status`` asked about them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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

STATUS_COMMAND = (
    sys.executable,
    "-c",
    "import sys, throwaway_patches as t; t.look_nowhere_else();"
    "from sglang_perf_patches.cli import main; sys.exit(main(['status', *sys.argv[1:]]))",
)
"""``status`` as a user calls it, but of the throwaway package's processes only."""


def start(
    throwaway: Throwaway, stderr: IO[str] | int = subprocess.PIPE, **variables: str | None
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE],
        env=throwaway.environment(**variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "up\n"
    return process


@contextmanager
def serving(
    throwaway: Throwaway, stderr: IO[str] | int = subprocess.PIPE, **variables: str | None
) -> Iterator[subprocess.Popen[str]]:
    """A process that serves within the context."""
    process = start(throwaway, stderr, **variables)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def status(throwaway: Throwaway, *words: str, **variables: str | None) -> tuple[int, str, str]:
    done = throwaway.execute(sys.executable, "-c", STATUS, *words, **variables)
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
