"""Starts the stock server as a user does, with shims for what this machine lacks."""

import os
import random
import re
import shutil
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import cycle
from pathlib import Path

from linux_mlx import tiny_model
from linux_mlx.environments import Environment, variables
from linux_mlx.patience import limit_s, wait_for
from linux_mlx.processes import Failure, last_lines, started
from linux_mlx.shims.twin import TWIN

_SHIMS = Path(__file__).parent / "shims"


def arguments_of(release: str) -> tuple[str, ...]:
    """The options with which a release's server handles requests on MLX correctly.

    0.5.10 has three errors. It loses a decoding request while it prefills another one, unless both
    are in one batch. It uses prefixes from the radix cache that its MLX runner does not have. If
    it splits a prompt, to keep a batch within 2048 tokens, it loses the rest of the prompt.
    """
    if release.startswith("0.5.10"):
        uncut = ("--chunked-prefill-size", "16384")
        return ("--enable-mixed-chunk", "--disable-radix-cache", *uncut)
    return ()


def write_model(environment: Environment, folder: Path, kind: str = "dense") -> Path:
    """Write a model of `tiny_model.KINDS`: a copy of what the environment's Python, with mlx, made.

    That takes five seconds of a CPU, so it is done once for each environment.
    """
    script = Path(tiny_model.__file__)
    kept = environment.folder / "models" / f"{kind}-{sha256(script.read_bytes()).hexdigest()[:16]}"
    model = folder / "model"
    if not kept.exists():
        command: list[str | Path] = [environment.python, script, model, kind]
        if subprocess.run(command, env=variables(), check=False).returncode:
            raise Failure("the tiny model could not be written")
        _keep(model, kept)
        return model
    return Path(shutil.copytree(kept, model, dirs_exist_ok=True))


def _keep(made: Path, kept: Path) -> None:
    """Copy a file or a folder at once, unless it is there or another process is faster."""
    if kept.exists():
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder, suppress(OSError):
        copy = shutil.copytree if made.is_dir() else shutil.copy2
        Path(copy(made, Path(folder) / made.name)).rename(kept)


@dataclass(frozen=True)
class Server:
    """A running server: its settings, its URL and its process group.

    The group's number is the launcher's PID; `runtime` is the folder with the patches' records.
    """

    environment: Environment
    selection: str
    url: str
    group: int
    log: Path
    runtime: Path

    def most_decoded_together(self) -> int:
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
    forks: bool = True,
) -> Iterator[Server]:
    """Start the server with `SGLANG_PERF_PATCHES=selection`; the block runs once it is ready.

    `launcher` precedes the command, such as `sglang-perf-patches run`, and `arguments` follow it.
    `settings` are further environment variables, and `python_path` further folders with packages.
    When the block ends, no part of the server remains. The server has its own temporary folder,
    where it leaves sockets; the patches' records are there too, unless `runtime` is set. With
    `forks` its processes may begin as forks of a twin, which is one more process of its group.
    """
    port = free_port()
    # An idle scheduler polls, which takes a core from the other tests.
    listening = ["--host", "127.0.0.1", "--port", str(port), "--sleep-on-idle"]
    if "--dp-size" not in arguments:  # each of those schedulers needs a port of its own
        listening += ["--nccl-port", str(free_port())]
    command = [*launcher, *server_command(environment, model), *listening, *arguments]
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlx-server-")))
        kernels = environment.folder / "kernels"
        for file in kernels.glob("*/*.so"):
            copy = scratch / "mlx" / file.parent.name / "cpu" / file.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)
        environment_of_server = server_variables(
            selection, scratch, python_path=python_path, runtime=runtime
        ) | (settings or {})
        if forks and not launcher:  # `run` begins before the twin does
            environment_of_server[TWIN] = "1"
        process = stack.enter_context(started(command, variables=environment_of_server, log=log))
        url = f"http://127.0.0.1:{port}"
        server = Server(environment, selection, url, process.pid, log, runtime or scratch)
        if not wait_for(lambda: process.poll() is not None or _answers(f"{url}/health")):
            raise Failure(f"no answer for {limit_s():.0f} s:\n{last_lines(log)}")
        if process.poll() is not None:
            raise Failure(f"the server ended while starting:\n{last_lines(log)}")
        # MLX compiles its kernels at their first use, in seconds of a CPU, and finds them by name.
        for file in (scratch / "mlx").glob("*/cpu/*.so"):
            _keep(file, kernels / file.parents[1].name / file.name)
        try:
            yield server
        except (urllib.error.URLError, ConnectionResetError, TimeoutError) as error:
            # The server did not answer a request; its log says why.
            raise Failure(f"{error}:\n{last_lines(log)}") from error


def server_command(environment: Environment, model: Path) -> list[str | Path]:
    """The command with which a user serves the model, without host and port."""
    return [
        *(environment.python, "-m", "sglang.launch_server"),
        *("--model-path", model, "--served-model-name", "tiny"),
        *("--device", "cpu"),
        # By default the server would size its cache for this machine at 256 tokens.
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
    """The environment variables of a server with its own temporary files and records."""
    return variables(
        PYTHONPATH=os.pathsep.join(map(str, (_SHIMS, *python_path))),
        SGLANG_USE_MLX="1",
        SGLANG_PERF_PATCHES=selection,
        HF_HUB_OFFLINE="1",
        NO_PROXY="127.0.0.1",
        TMPDIR=scratch,
        XDG_RUNTIME_DIR=runtime or scratch,
    )


def free_port() -> int:
    """A free port that no test of another worker takes.

    A server opens its ports long after they were drawn, the group's last, so one that two servers
    draw meanwhile ends the second. 0.5.23 draws the group's from 22000 to 29999 if it is not told.
    """
    while True:
        port = next(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
_LEAST = 12_000 + 1_000 * (_WORKER % 10)
_PORTS = cycle(random.sample(range(_LEAST, _LEAST + 1_000), 1_000))
"""Each once before any comes again: a server is told two, and opens none of them yet."""


def _answers(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=10) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
