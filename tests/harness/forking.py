"""Started with ``python forking.py BEGINNING SOCKET IDLE_S``: it forks for `released`.

SOCKET is the number of a listening socket. Each connection brings a request, a JSON line, and gets
the exit code of the fork that runs it. The fork is killed if who asked closes the connection. A
request with an ``address`` makes a fork that imports a release and serves there in the same way. A
process ends when nobody has asked for IDLE_S seconds and no fork runs.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import socketserver
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import reads
from linux_mlx.shims.twin import TORCH, run_to_end

BEGINNINGS = {
    "stubs": (
        *TORCH,
        *("transformers.modeling_utils", "transformers.processing_utils", "torchvision"),
        *("openai.types.responses", "fastapi", "aiohttp", "scipy.stats", "hypothesis"),
        "rich.console",
    ),
    "mlx": ("mlx_lm", "mlx.nn", *TORCH, "hypothesis"),
}
"""By the way that a script begins, what takes long of what it and sglang import of other packages.

``stubs``: with ``stubs.lend()``. ``mlx``: with nothing, or with ``standalone.lend()``.
"""

OF_RELEASE = {"stubs": ("sglang.srt.managers.scheduler", "sglang.srt.models.registry")}
"""By beginning, what takes long of a release's own modules. The second imports all models."""


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """Accepts requests; each is handled by a process that forks the one which runs the script."""

    lent_variables: Mapping[str, str]  # of the environment, set by the imports of the beginning

    def __init__(self, beginning: str, listening: socket.socket, idle_s: float) -> None:
        super().__init__("", _Request, bind_and_activate=False)
        self.socket.close()
        self.beginning, self.socket = beginning, listening
        self.timeout = self.idle_s = idle_s

    def handle_timeout(self) -> None:
        super().handle_timeout()
        if not self.active_children:
            # At once: an interpreter takes two seconds of a CPU to take apart what was imported.
            os._exit(0)


class _Request(socketserver.StreamRequestHandler):
    server: Server

    def handle(self) -> None:
        request = json.loads(self.rfile.readline())
        if "address" in request:
            self._serve_release(**request)
            return
        pid = os.fork()
        if pid == 0:
            os.close(self.server.fileno())
            os.close(self.connection.fileno())
            os._exit(_become(request, self.server.lent_variables))
        ended = os.pidfd_open(pid)
        ready, _, _ = select.select([ended, self.connection], [], [])
        if ended not in ready:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(ConnectionError):
            self.connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())

    def _serve_release(self, address: str, search: list[str]) -> None:
        """Become a process that forks with a release's modules, unless there is one."""
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(address)
        except OSError:  # another test was faster
            return
        listening.listen()
        self.server.socket.close()
        self.connection.sendall(b"0\n")
        sys.path[:0] = search
        server = Server(self.server.beginning, listening, self.server.idle_s)
        server.lent_variables = self.server.lent_variables
        fork_for_each(server, *OF_RELEASE[server.beginning])


def serve(server: Server) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # a fork's standard streams are its own
        os.dup2(nothing, number)
    before = dict(os.environ)
    if server.beginning == "stubs":
        from tests.proof import stubs

        stubs.lend()
    for name in BEGINNINGS[server.beginning]:
        with contextlib.suppress(ModuleNotFoundError):  # not every environment has them all
            importlib.import_module(name)
    server.lent_variables = {n: value for n, value in os.environ.items() if before.get(n) != value}
    fork_for_each(server)


def fork_for_each(server: Server, *modules: str) -> None:
    """Import modules, then fork for each request until nobody asks any more."""
    for name in modules:
        with contextlib.suppress(Exception):  # the script's own import of it tells
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a fork's collector need not walk, and so copy, all that was imported
    while True:
        server.handle_request()
        server.service_actions()


def _become(request: dict[str, Any], lent_variables: Mapping[str, str]) -> int:
    """Continue in a fork as the script that was asked for; its exit code."""
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
    reads.write_to(Path(request["reads"]))
    return run_to_end(lambda: runpy.run_path(script, run_name="__main__"))


if __name__ == "__main__":
    serve(Server(sys.argv[1], socket.socket(fileno=int(sys.argv[2])), float(sys.argv[3])))
