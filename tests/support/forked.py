"""Runs scripts in forks of a process that has imported what each of them imports first.

PyTorch, transformers, mlx-lm and what else sglang needs take ten seconds of a CPU to import, and
the tests run some 80 scripts in the default tier, hundreds with ``--all``. `run` starts one process
for an interpreter and a way to begin (`BEGINNINGS`). It imports those packages, but nothing of
sglang, and forks for each script; the fork goes on as if it had been started with the script.

Started with ``python forked.py BEGINNING``, this module is that process. It reads requests as JSON
lines, one at a time, and answers each with two lines: the fork's PID, then its exit code.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

BEGINNINGS = {
    "lent": (
        *("torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.tensor"),
        *("transformers.modeling_utils", "transformers.processing_utils", "torchvision"),
        *("openai.types.responses", "fastapi", "aiohttp", "scipy.stats", "hypothesis"),
        "rich.console",
    ),
    "mlx": (
        *("mlx_lm", "mlx.nn", "torch._dynamo", "torch._inductor.compile_fx"),
        *("torch.distributed.tensor", "hypothesis"),
    ),
}
"""By the way that a script begins, what takes long of what it and sglang import of other packages.

``lent``: with ``lent.lend()``. ``mlx``: with nothing, or with ``standalone.lend()``.
"""


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
        beginning: how the script begins, one of `BEGINNINGS`.
        search: what PYTHONPATH holds already while the packages are imported.
        variables: the whole environment of the script; its PYTHONPATH too.
        given: the script's standard input; nothing without.
        limit_s: seconds that it may take; then it is killed.

    Returns:
        its exit code, standard output and standard error.

    Raises:
        subprocess.TimeoutExpired: it took too long.
    """
    server = _server(python, beginning, search)
    assert server.stdin
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("in", "out", "err")]
        files[0].write_text(given or "")
        request = {
            "script": str(script),
            "words": [str(word) for word in words],
            "variables": dict(variables),
            "files": [str(file) for file in files],
        }
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        pid = _answer(server, None)
        code = _answer(server, limit_s)
        if code is None:
            os.kill(pid, signal.SIGKILL)
            _answer(server, None)
            raise subprocess.TimeoutExpired([script, *words], limit_s or 0)
        return code, *(file.read_text(errors="replace") for file in files[1:])


def _answer(server: subprocess.Popen[str], limit_s: float | None) -> Any:
    """The next line of the server, or None if there is none in time."""
    assert server.stdout
    ready, _, _ = select.select([server.stdout], [], [], limit_s)
    if not ready:
        return None
    line = server.stdout.readline()
    assert line, f"the process that forks has ended with {server.wait()}"
    return json.loads(line)


def _server(python: Path, beginning: str, search: tuple[Path, ...]) -> subprocess.Popen[str]:
    """The process of an interpreter that forks; it ends when its input does."""
    from linux_mlx.environments import variables  # which the process that forks can't import

    kind = (python, beginning, search)
    server = _servers.pop(kind, None)
    if server is None:
        while len(_servers) >= _KEPT:
            with _servers.pop(next(iter(_servers))) as oldest:
                assert oldest.stdin
                oldest.stdin.close()
        server = subprocess.Popen(
            [python, "-W", "ignore", __file__, beginning],
            env=variables(PYTHONPATH=os.pathsep.join(map(str, search)), OMP_NUM_THREADS="1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    _servers[kind] = server  # the one in use is the youngest
    return server


_KEPT = 2  # each holds half a gigabyte of memory or more
_servers: dict[tuple[Path, str, tuple[Path, ...]], subprocess.Popen[str]] = {}


def _serve(beginning: str) -> None:
    """Import what scripts begin with, then fork for each request until there is no more input."""
    # A fork's standard streams are its own; these two are between the server and `run`.
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    before = dict(os.environ)
    if beginning == "lent":
        from sglang_perf_patches.proof import lent

        lent.lend()
    for name in BEGINNINGS[beginning]:
        with contextlib.suppress(ModuleNotFoundError):  # not every environment has them all
            importlib.import_module(name)
    lent_variables = {n: value for n, value in os.environ.items() if before.get(n) != value}
    for line in iter(requests.readline, ""):
        pid = os.fork()
        if pid == 0:
            requests.close()
            answers.close()
            _become(json.loads(line), lent_variables)
            return
        print(pid, file=answers, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
    os._exit(0)  # at once: nothing is left to be done by what was imported


def _become(request: dict[str, Any], lent_variables: Mapping[str, str]) -> None:
    """Go on in a fork as the script that was asked for."""
    modes = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT)
    for number, (name, mode) in enumerate(zip(request["files"], modes, strict=True)):
        os.dup2(os.open(name, mode), number)
    streams: list[IO[str]] = [os.fdopen(n, "w" if n else "r", closefd=False) for n in range(3)]
    sys.stdin, sys.stdout, sys.stderr = streams
    os.environ.clear()
    os.environ.update({**request["variables"], **lent_variables})
    script = request["script"]
    sys.argv = [script, *request["words"]]
    searched = [str(Path(script).parent), *request["variables"]["PYTHONPATH"].split(os.pathsep)]
    sys.path[:] = [*searched, *(place for place in sys.path[1:] if place not in searched)]
    importlib.invalidate_caches()
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    _serve(sys.argv[1])
