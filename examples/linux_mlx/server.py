"""The stock server as a user starts it, with the shims for what this machine has not."""

import os
import random
import re
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from linux_mlx.environments import Environment, variables
from linux_mlx.processes import Failure, last_lines, started

_SHIMS = Path(__file__).parent / "shims"
_READY_S = 240


def arguments_of(release: str) -> tuple[str, ...]:
    """What a release's server has to be told to serve requests with MLX correctly.

    0.5.10 forgets a request that decodes while another one is prefilled, unless both are in one
    batch; takes a prefix out of the radix cache that its MLX runner does not have; and where it
    cuts a prompt, to have no more than 2048 tokens in a batch, forgets the rest of it.
    """
    if release.startswith("0.5.10"):
        uncut = ("--chunked-prefill-size", "16384")
        return ("--enable-mixed-chunk", "--disable-radix-cache", *uncut)
    return ()


@dataclass(frozen=True)
class Server:
    """A running server: what it was started with, where it answers, and its process group.

    The group bears the PID of the launcher; `runtime` is where the records of patches lie.
    """

    environment: Environment
    selection: str
    url: str
    group: int
    log: Path
    runtime: Path

    def most_decoded_together(self) -> int:
        """The largest decode batch that the server has logged."""
        sizes = re.findall(r"Decode batch.*?#running-req: (\d+)", self.log.read_text())
        return max(map(int, sizes), default=0)


@contextmanager
def running_server(
    environment: Environment,
    model: Path,
    *,
    selection: str,
    log: Path,
    launcher: Sequence[str | Path] = (),
    arguments: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    python_path: Sequence[Path] = (),
    runtime: Path | None = None,
) -> Iterator[Server]:
    """Start the server with `SGLANG_PERF_PATCHES=selection`; the block runs once it is ready.

    `launcher` stands before the command, as `sglang-perf-patches run` does, and `arguments` after
    it; `settings` are further environment variables, and `python_path` further folders with
    packages. Nothing of the server is left when the block ends; its temporary folder, where it
    leaves sockets, is its own, and so are its patches' records unless `runtime` is given.
    """
    port = _free_port()
    listening = ("--host", "127.0.0.1", "--port", str(port))
    command = [*launcher, *server_command(environment, model), *listening, *arguments]
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlx-server-")))
        environment_of_server = server_variables(
            selection, scratch, python_path=python_path, runtime=runtime
        ) | (settings or {})
        process = stack.enter_context(started(command, variables=environment_of_server, log=log))
        url = f"http://127.0.0.1:{port}"
        server = Server(environment, selection, url, process.pid, log, runtime or scratch)
        _wait_until_ready(server, process)
        try:
            yield server
        except (urllib.error.URLError, ConnectionResetError, TimeoutError) as error:
            # A request was not answered, and the server's log says why.
            raise Failure(f"{error}:\n{last_lines(log)}") from error


def server_command(environment: Environment, model: Path) -> list[str | Path]:
    """What a user types to serve the model, without host and port."""
    return [
        *(environment.python, "-m", "sglang.launch_server"),
        *("--model-path", model, "--served-model-name", "tiny"),
        *("--device", "cpu"),
        # Left to itself, the server would size its cache for this machine at 256 tokens.
        *("--max-total-tokens", "16384"),
        *("--decode-log-interval", "4"),
    ]


def server_variables(
    selection: str,
    scratch: Path,
    *,
    python_path: Sequence[Path] = (),
    runtime: Path | None = None,
) -> dict[str, str]:
    """The environment variables of a server whose temporary files and records are its own."""
    return variables(
        PYTHONPATH=os.pathsep.join(map(str, (_SHIMS, *python_path))),
        SGLANG_USE_MLX="1",
        SGLANG_PERF_PATCHES=selection,
        HF_HUB_OFFLINE="1",
        NO_PROXY="127.0.0.1",
        TMPDIR=scratch,
        XDG_RUNTIME_DIR=runtime or scratch,
    )


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _READY_S
    while not _answers(f"{server.url}/health"):
        if process.poll() is not None:
            raise Failure(f"the server ended while starting:\n{last_lines(server.log)}")
        if time.monotonic() > deadline:
            raise Failure(f"no answer for {_READY_S} s:\n{last_lines(server.log)}")
        time.sleep(0.25)


def _answers(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=10) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    """One well below 55536: 0.5.11 adds 10000 to it for a port that it does not even open."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
