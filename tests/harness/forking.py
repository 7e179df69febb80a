"""Started with ``python forking.py BEGINNING SOCKET``: the process that `forked` has fork.

SOCKET is the number of a listening socket. Each process of the tests that connects sends requests
as JSON lines, one at a time, and gets two lines for each: the fork's PID, then its exit code. Forks
for several of them run side by side. When the last has gone, this process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

BEGINNINGS = {
    "stubs": (
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

``stubs``: with ``stubs.lend()``. ``mlx``: with nothing, or with ``standalone.lend()``.
"""


def serve(beginning: str, listening: socket.socket) -> None:
    """Import what scripts begin with, then fork for each request until nobody is left to ask."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # a fork's standard streams are its own
        os.dup2(nothing, number)
    before = dict(os.environ)
    if beginning == "stubs":
        from tests.proof import stubs

        stubs.lend()
    for name in BEGINNINGS[beginning]:
        with contextlib.suppress(ModuleNotFoundError):  # not every environment has them all
            importlib.import_module(name)
    lent_variables = {n: value for n, value in os.environ.items() if before.get(n) != value}
    gc.collect()
    gc.freeze()  # a fork's collector need not walk, and so copy, all that was imported
    request = _next_request(listening)
    # At once: an interpreter takes two seconds of a CPU to take apart all that was imported.
    os._exit(_become(request, lent_variables) if request else 0)


def _next_request(listening: socket.socket) -> dict[str, Any] | None:
    """In a fork, what it is to run; in the process that forks None, when nobody is left to ask."""
    selector = selectors.DefaultSelector()
    selector.register(listening, selectors.EVENT_READ)
    running: dict[socket.socket, int] = {}  # who asks, and the PID of what runs for him
    asking: set[socket.socket] = set()
    while True:
        # The first to ask has connected already.
        for key, _ in selector.select() if asking else [(selector.get_key(listening), None)]:
            if key.fileobj is listening:
                listening.settimeout(None if asking else 0)
                try:
                    asker, _ = listening.accept()
                except BlockingIOError:
                    return None
                asking.add(asker)
                selector.register(asker, selectors.EVENT_READ)
            elif isinstance(key.fileobj, socket.socket):
                asker = key.fileobj
                line = _line(asker)
                if line:
                    pid = os.fork()
                    if pid == 0:
                        selector.close()
                        for each in (listening, *asking):
                            each.close()
                        return dict(json.loads(line))
                    running[asker] = pid
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (asker, pid))
                    _answer(asker, pid)
                else:
                    if asker in running:
                        os.kill(running[asker], signal.SIGKILL)
                    asking.remove(asker)
                    selector.unregister(asker)
                    asker.close()
            else:
                asker, pid = key.data
                selector.unregister(key.fileobj)
                os.close(key.fd)
                _, status = os.waitpid(pid, 0)
                del running[asker]
                if asker in asking:
                    _answer(asker, os.waitstatus_to_exitcode(status))


def _line(asker: socket.socket) -> bytes:
    """The request that begins to arrive; nothing if who asks has gone."""
    got = bytearray()
    with contextlib.suppress(ConnectionError):
        while not got.endswith(b"\n"):
            more = asker.recv(1 << 16)
            if not more:
                return b""
            got += more
        return bytes(got)
    return b""


def _answer(asker: socket.socket, number: int) -> None:
    with contextlib.suppress(ConnectionError):  # its end is seen when it is read from
        asker.sendall(f"{number}\n".encode())


def _become(request: dict[str, Any], lent_variables: Mapping[str, str]) -> int:
    """Go on in a fork as the script that was asked for; its exit code."""
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
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        code = 1
        traceback.print_exc()
    # What an interpreter does before it takes itself apart.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in streams[1:]:
        stream.flush()
    return code


if __name__ == "__main__":
    serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
