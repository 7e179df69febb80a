"""Runs scripts in forks of a process that has imported what each of them imports first.

PyTorch, transformers, mlx-lm and what else sglang needs take 15 seconds of a CPU to import, and
the tests run some 80 scripts in the default tier, hundreds with ``--all``. `run` has one process
started for an interpreter and a way to begin, by whichever process of a test run is the first to
need it (see `forking`). It imports those packages, but nothing of sglang, and forks for each
script; the fork goes on as if it had been started with the script.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

RUN = "PERF_PATCHES_TESTS_RUN"
"""The variable that names a test run, whose processes share those that fork."""

_SCRIPT = Path(__file__).with_name("forking.py")
_ALONE = uuid.uuid4().hex

Kind = tuple[Path, str, tuple[Path, ...]]


def run(
    python: Path,
    script: Path,
    words: Sequence[str | Path],
    *,
    beginning: str,
    search: tuple[Path, ...],
    variables: Mapping[str, str],
    given: str | None,
    limit_s: float | None,
) -> tuple[int, str, str]:
    """Run a script as ``python -W ignore SCRIPT WORDS`` would.

    Args:
        python: the interpreter.
        script: what it runs.
        words: the script's arguments.
        beginning: how the script begins, one of `forking.BEGINNINGS`.
        search: what PYTHONPATH holds already while the packages are imported.
        variables: the whole environment of the script; its PYTHONPATH too.
        given: the script's standard input; nothing without.
        limit_s: seconds that it may take; then it is killed.

    Returns:
        its exit code, standard output and standard error.

    Raises:
        subprocess.TimeoutExpired: it took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("in", "out", "err")]
        files[0].write_text(given or "")
        request = {
            "script": str(script),
            "words": [str(word) for word in words],
            "variables": dict(variables),
            "files": [str(file) for file in files],
        }
        server, pid = _fork((python, beginning, search), json.dumps(request) + "\n")
        code = _answer(server, limit_s)
        if code is None:
            os.kill(pid, signal.SIGKILL)
            _answer(server, None)
            raise subprocess.TimeoutExpired([script, *words], limit_s or 0)
        return code, *(file.read_text(errors="replace") for file in files[1:])


def _fork(kind: Kind, request: str) -> tuple[socket.socket, int]:
    """Who forked for a request, and the fork's PID."""
    for _ in range(3):
        server = _server(kind)
        try:
            server.sendall(request.encode())
            pid = _answer(server, None)
            assert pid
        except ConnectionError:  # it was about to end when this process connected
            _servers.pop(kind).close()
        else:
            return server, pid
    raise AssertionError(f"the process that forks ends at once: {kind}")


def _answer(server: socket.socket, limit_s: float | None) -> int | None:
    """The next line of the server, or None if there is none in time."""
    ready, _, _ = select.select([server], [], [], limit_s)
    if not ready:
        return None
    line = b""
    while not line.endswith(b"\n"):
        more = server.recv(1)  # no byte of the next line, which may be there already
        if not more:
            raise ConnectionResetError("the process that forks has ended")
        line += more
    return int(line)


def _server(kind: Kind) -> socket.socket:
    """A connection to the process that forks; it ends when it has none left."""
    server = _servers.pop(kind, None)
    if server is None:
        while len(_servers) >= _KEPT:
            _servers.pop(next(iter(_servers))).close()
        server = _connected(kind)
    _servers[kind] = server  # the one in use is the youngest
    return server


def _connected(kind: Kind) -> socket.socket:
    name = hashlib.sha256(repr((os.environ.get(RUN, _ALONE), kind)).encode()).hexdigest()
    address = f"\0sglang-perf-patches-{name}"  # of Linux, in no folder: it ends with its socket
    while True:
        with socket.socket(socket.AF_UNIX) as listening:
            try:
                listening.bind(address)
            except OSError:  # another process of the run has it
                pass
            else:
                listening.listen()
                _start(kind, listening)
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(address)
        except ConnectionRefusedError:  # which has just ended
            server.close()
        else:
            return server


def _start(kind: Kind, listening: socket.socket) -> None:
    from linux_mlx.environments import variables  # which the process that forks can't import

    python, beginning, search = kind
    _started.append(
        subprocess.Popen(
            [python, "-W", "ignore", _SCRIPT, beginning, str(listening.fileno())],
            env=variables(PYTHONPATH=os.pathsep.join(map(str, search)), OMP_NUM_THREADS="1"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
        )
    )


_KEPT = 3  # each process that forks holds half a gigabyte of memory or more
_servers: dict[Kind, socket.socket] = {}
_started: list[subprocess.Popen[bytes]] = []
