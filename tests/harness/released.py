"""Runs a script of the tests beside a released sglang, in a process of its own on this CPU.

PyTorch, transformers, mlx-lm and what else sglang needs take 15 seconds of a CPU to import, and
the tests run some 80 scripts in the default tier, hundreds with ``--all``. So `run` has one process
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import forking
import reads
from linux_mlx.environments import environment, sglang_environment, variables
from linux_mlx.patience import limit_s
from linux_mlx.server import free_port
from sglang_perf_patches import downloads

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]  # for `tests.proof`
_SOURCE = _ROOT / "src"
_SHIMS = _HERE / "linux_mlx" / "shims"

RUN = "PERF_PATCHES_TESTS_RUN"
"""The variable that names a test run, whose processes share those that fork."""
_ALONE = uuid.uuid4().hex
_IDLE_S = 60.0
"""After so long without a request a process that forks ends: it holds half a gigabyte or more."""

Kind = tuple[Path, str, tuple[Path, ...]]
"""An interpreter, how a script begins, and what PYTHONPATH holds meanwhile."""


@dataclass(frozen=True)
class Place:
    """An interpreter that can import a release and this project."""

    python: Path
    search: tuple[Path, ...]  # what PYTHONPATH holds
    settings: tuple[tuple[str, str], ...] = ()  # further variables
    beginning: str = ""  # how each script begins (`forking.BEGINNINGS`), so that a fork may run it
    release: Path | None = None  # the tree of which the fork has the main modules


def tree(release: str, *, beginning: str = "stubs", imported: bool = True) -> Place:
    """The release's Python files alone, with what they import on a CPU.

    Its modules are imported already when a script begins, unless `imported` is False.
    """
    python = environment(_HERE / "cpu.txt").python
    folder = downloads.tree(release)
    first = folder if imported and beginning in forking.OF_RELEASE else None
    search = (folder, _SOURCE, _HERE, _ROOT)
    return Place(python, search, beginning=beginning, release=first)


def slim(release: str) -> Place:
    """The release as pip installs it, slim, with MLX on the CPU."""
    python = sglang_environment(release).python
    return Place(python, (_SOURCE, _SHIMS, _ROOT), (("SGLANG_USE_MLX", "1"),), "mlx")


def run(place: Place, *words: str | Path, given: str | None = None, **more: str) -> str:
    """What the interpreter of a place prints, with `given` as input and `more` variables."""
    settings = {**dict(place.settings), "OMP_NUM_THREADS": "1", **more}
    settings = variables(PYTHONPATH=os.pathsep.join(map(str, place.search)), **settings)
    if place.beginning and isinstance(words[0], Path):
        code, out, err = _forked(place, words, settings, given or "")
    else:
        done = subprocess.run(
            [place.python, "-W", "ignore", *words],
            env=settings,
            input=given,
            capture_output=True,
            text=True,
            timeout=limit_s(),
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    assert code == 0, f"{out[-3000:]}\n{err[-4000:]}"
    return out


def answers(place: Place, script: Path, *words: str, **options: Any) -> list[Any]:
    """The JSON objects that a script prints, one a line; otherwise like `run`."""
    lines = run(place, script, *words, **options).splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"')]


def ranks(
    release: str, script: Path, selections: Sequence[str], *words: str
) -> list[dict[str, Any]]:
    """What the ranks of one server print, each with its selection of patches.

    Each is ``python SCRIPT RANK RANKS PORT SELECTION WORDS``; they meet at the port.
    """
    place, port = tree(release), str(free_port())

    def play(rank: int) -> dict[str, Any]:
        about = (str(rank), str(len(selections)), port, selections[rank])
        (told,) = answers(place, script, *about, *words)
        return dict(told)

    with ThreadPoolExecutor(len(selections)) as all_ranks:
        return list(all_ranks.map(play, range(len(selections))))


Job = tuple[str, dict[str, Any]]
"""A function of a set's ``jobs.py``, and its arguments."""


def play(place: Place, module: Path, jobs: Sequence[Job], **options: Any) -> list[dict[str, Any]]:
    """What a module's functions return, called in order in one process; the options are `run`'s.

    A line for each job, with its ``value`` or ``error``: see `on_release`.
    """
    script = _HERE / "on_release.py"
    lines = answers(place, script, str(module), given=json.dumps(jobs), **options)
    assert [line["job"] for line in lines] == [name for name, _ in jobs], lines
    return lines


def value(place: Place, module: Path, job: str, /, **options: Any) -> Any:
    """What a function of a module returns on a release, where it must not fail; see `play`."""
    (line,) = play(place, module, [(job, options.pop("arguments", {}))], **options)
    assert "error" not in line, f"{job}:\n{line.get('error')}"
    return line["value"]


def _forked(
    place: Place, words: Sequence[str | Path], settings: Mapping[str, str], given: str
) -> tuple[int, str, str]:
    """The exit code, output and errors of a script in a fork.

    For the imports before the fork PYTHONPATH holds nothing of the release.

    Raises:
        subprocess.TimeoutExpired: it took more than `limit_s` seconds, and was killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        *files, read = (Path(folder) / name for name in ("in", "out", "err", "reads"))
        files[0].write_text(given)
        request = {
            "script": str(words[0]),
            "words": [str(word) for word in words[1:]],
            "variables": settings,
            "files": [str(file) for file in files],
            "reads": str(read),
        }
        search = tuple(each for each in place.search if each in (_SOURCE, _SHIMS, _ROOT))
        kind = place.python, place.beginning, search
        limit = limit_s()
        try:
            code = _exit_code(kind, place.release, json.dumps(request) + "\n", limit)
        except TimeoutError:
            raise subprocess.TimeoutExpired(words, limit) from None
        if read.exists():
            reads.noted.update(read.read_text().splitlines())
        return code, *(file.read_text(errors="replace") for file in files[1:])


def _exit_code(kind: Kind, release: Path | None, request: str, limit: float) -> int:
    for _ in range(3):
        # The process that forks may be about to end when this one connects.
        connect = _connected if release is None else partial(_connected_to, release)
        with connect(kind) as server, suppress(ConnectionError):
            server.settimeout(limit)
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
    python, beginning, search = kind
    _started.append(
        subprocess.Popen(
            [
                python,
                "-W",
                "ignore",
                forking.__file__,
                beginning,
                f"{listening.fileno()}",
                f"{_IDLE_S}",
            ],
            env=variables(PYTHONPATH=os.pathsep.join(map(str, search)), OMP_NUM_THREADS="1"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
        )
    )


_started: list[subprocess.Popen[bytes]] = []
