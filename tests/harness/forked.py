"""Runs scripts in forks of a process that has imported what each of them imports first.

PyTorch, transformers, mlx-lm and what else sglang needs take 15 seconds of a CPU to import, and
the tests run some 80 scripts in the default tier, hundreds with ``--all``. `run` has one process
started for an interpreter and a way to begin, by whichever process of a test run is the first to
need it (see `forking`). It imports those packages, but nothing of sglang, and forks for each
script; the fork continues as if it had been started with the script.
"""

import hashlib
import json
import os
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import reads

RUN = "PERF_PATCHES_TESTS_RUN"
"""The variable that names a test run, whose processes share those that fork."""

IDLE_S = 60.0
"""After so long without a request a process that forks ends: it holds half a gigabyte or more."""

_SCRIPT = Path(__file__).with_name("forking.py")
_ALONE = uuid.uuid4().hex

Kind = tuple[Path, str, tuple[Path, ...]]
"""An interpreter, how a script begins, and what PYTHONPATH holds meanwhile."""


def run(
    python: Path,
    script: Path,
    words: Sequence[str | Path],
    *,
    beginning: str,
    search: tuple[Path, ...],
    release: Path | None,
    variables: Mapping[str, str],
    given: str | None,
    limit_s: float | None,
) -> tuple[int, str, str]:
    """Run a script as ``python -W ignore SCRIPT WORDS`` would; its exit code, output and errors.

    It begins as `beginning` of `forking.BEGINNINGS` does, for which PYTHONPATH holds `search`, then
    with the modules of the tree `release`, if any. `variables` is its whole environment, with its
    own PYTHONPATH, and `given` its standard input.

    Raises:
        subprocess.TimeoutExpired: it took more than `limit_s` seconds, and was killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("in", "out", "err")]
        files[0].write_text(given or "")
        request: dict[str, Any] = {
            "script": str(script),
            "words": [str(word) for word in words],
            "variables": dict(variables),
            "files": [str(file) for file in files],
            "reads": str(Path(folder) / "reads"),
        }
        kind = python, beginning, search
        try:
            code = _exit_code(kind, release, json.dumps(request) + "\n", limit_s)
        except TimeoutError:
            raise subprocess.TimeoutExpired([script, *words], limit_s or 0) from None
        if (read := Path(request["reads"])).exists():
            reads.noted.update(read.read_text().splitlines())
        return code, *(file.read_text(errors="replace") for file in files[1:])


def _exit_code(kind: Kind, release: Path | None, request: str, limit_s: float | None) -> int:
    for _ in range(3):
        # The process that forks may be about to end when this one connects.
        connect = _connected if release is None else partial(_connected_to, release)
        with connect(kind) as server, suppress(ConnectionError):
            server.settimeout(limit_s)
            server.sendall(request.encode())
            if line := server.makefile().readline():
                return int(line)
    raise AssertionError(f"the process that forks ends at once: {kind}")


def _address(*kind: object) -> str:
    """Of Linux, in no folder: it ends with its socket."""
    name = hashlib.sha256(repr((os.environ.get(RUN, _ALONE), kind)).encode()).hexdigest()
    return f"\0sglang-perf-patches-{name}"


def _connection(address: str) -> socket.socket | None:
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(address)
    except ConnectionRefusedError:  # there is none, or it has just ended
        server.close()
        return None
    return server


def _connected_to(release: Path, kind: Kind) -> socket.socket:
    """To a process that has imported a release; one of the others forks it."""
    address = _address(kind, release)
    while (server := _connection(address)) is None:
        request = {"address": address, "search": [str(release)]}
        with _connected(kind) as packages, suppress(ConnectionError):
            packages.sendall((json.dumps(request) + "\n").encode())
            packages.makefile().readline()
    return server


def _connected(kind: Kind) -> socket.socket:
    address = _address(kind)
    while True:
        with socket.socket(socket.AF_UNIX) as listening:
            try:
                listening.bind(address)
            except OSError:  # another process of the run has it
                pass
            else:
                listening.listen()
                _start(kind, listening)
        if server := _connection(address):
            return server


def _start(kind: Kind, listening: socket.socket) -> None:
    from linux_mlx.environments import variables  # which the process that forks can't import

    python, beginning, search = kind
    _started.append(
        subprocess.Popen(
            [python, "-W", "ignore", _SCRIPT, beginning, f"{listening.fileno()}", f"{IDLE_S}"],
            env=variables(PYTHONPATH=os.pathsep.join(map(str, search)), OMP_NUM_THREADS="1"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
        )
    )


_started: list[subprocess.Popen[bytes]] = []
