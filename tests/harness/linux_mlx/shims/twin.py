"""Lets what a server spawns begin as a fork, with PyTorch imported.

multiprocessing starts an interpreter for each process, which takes five seconds of a CPU to import
PyTorch and transformers. So the launcher imports them first of all and forks a twin, which does
nothing else and forks for each process that the launcher spawns. Such a process has the launcher's
variables and folder, and is its child. Nothing of sglang or of this project is imported in it yet.
"""

import atexit
import ctypes
import fcntl
import importlib
import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import util
from typing import Any

TWIN = "PERF_PATCHES_TESTS_TWIN"
"""The variable that asks a launcher for a twin."""

TORCH = ("torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.tensor")
_FIRST = (
    *TORCH,
    *("transformers.modeling_utils", "transformers.processing_utils", "compressed_tensors"),
    *("gguf", "xgrammar", "openai.types.responses", "fastapi", "aiohttp", "rich.console"),
)
_SPAWNED = "--multiprocessing-fork"
_SET_CHILD_SUBREAPER = 36  # of prctl
_ABOVE = 100  # no process has as many files open before its own code runs
_LONGEST = 1 << 17


def arm() -> None:
    """In a launcher that is asked to, fork the twin; then multiprocessing asks the twin."""
    if os.environ.pop(TWIN, None) is None:
        return
    for name in _FIRST:
        with suppress(ImportError):  # not every release needs them all
            importlib.import_module(name)
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _serve(its)
    its.close()
    start = util.spawnv_passfds

    def spawn(path: str, words: Sequence[str], files: Sequence[int]) -> int:
        if os.fsdecode(words[-1]) != _SPAWNED:
            return start(path, words, files)  # type: ignore[arg-type]
        request = [list(map(os.fsdecode, words)), dict(os.environ), os.getcwd(), list(files)]
        # The fork's parent ends, so the kernel gives it to the next above who asked for that.
        _prctl(_SET_CHILD_SUBREAPER, 1)
        socket.send_fds(ours, [json.dumps(request).encode()], files)
        pid = int(ours.recv(_LONGEST))
        _prctl(_SET_CHILD_SUBREAPER, 0)
        return pid

    util.spawnv_passfds = spawn


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _serve(requests: socket.socket) -> None:
    """Fork for each request, until the launcher has ended."""
    while True:
        request, files, _, _ = socket.recv_fds(requests, _LONGEST, _ABOVE)
        if not request:
            os._exit(0)
        told, tells = os.pipe()
        if between := os.fork():
            os.waitpid(between, 0)
            requests.send(os.read(told, 100))
            for file in (told, tells, *files):
                os.close(file)
        elif pid := os.fork():
            os.write(tells, str(pid).encode())
            os._exit(0)
        else:
            for file in (told, tells, requests.fileno()):
                os.close(file)
            _become(*json.loads(request), files)


def _become(
    words: list[str],
    variables: dict[str, str],
    folder: str,
    numbers: list[int],
    files: list[int],
) -> None:
    """Continue as the interpreter that multiprocessing would have started."""
    apart = [fcntl.fcntl(file, fcntl.F_DUPFD, _ABOVE) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(apart, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)
    # Only what differs: setproctitle finds a process's title by where its variables are.
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    for name, value in variables.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    os.chdir(folder)
    sys.orig_argv[:] = words
    sys.argv[:] = ["-c", _SPAWNED]
    names: dict[str, Any] = {"__name__": "__main__"}
    os._exit(run_to_end(lambda: exec(words[words.index("-c") + 1], names)))


def run_to_end(program: Callable[[], object]) -> int:
    """Run a program, then what an interpreter runs before it takes itself apart; its exit code."""
    code = 0
    try:
        program()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        code = 1
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code
