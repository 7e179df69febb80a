"""Starts, observes and ends a command that runs below a `supervisor`."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ..telemetry import procfs
from . import supervisor

_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from sglang_perf_patches.supervised import supervisor; supervisor.main(sys.argv[2:])"
)
_ROOT = str(Path(__file__).parents[2])
_LOOK_S = 0.1


class Supervised:
    """A command that ends with all of its descendants, at the latest when this process does.

    It starts at once, with an empty stdin, in a session and process group of its own. `stdout` and
    `stderr` are as for `subprocess.Popen`, in text mode. After SIGTERM it gets `polite_s` seconds
    to end; 0 kills it at once. It has the attributes `pid` and, if that is a pipe, `stdout`.

    Raises:
        OSError: there is no such command, or it can't be run.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
        polite_s: float = 0.0,
    ) -> None:
        reader, writer = os.pipe()
        self._reports = os.fdopen(reader, "rb", buffering=0)
        self._report = b""
        self._heard: dict[str, str] = {}
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-c", _START),
                    *(_ROOT, str(writer), str(polite_s), *command),
                ],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                text=True,
                errors="replace",
                pass_fds=(writer,),
                start_new_session=True,
            )
        finally:
            os.close(writer)
        assert self._process.stdin is not None  # a pipe
        self._life = self._process.stdin
        self.stdout = self._process.stdout
        while "pid" not in self._heard and self._hear(None):
            pass
        self.pid = int(self._heard.get("pid", 0))
        if not self.pid:
            self.end()
            raise OSError(0, self._heard.get("error", "its supervisor could not be started"))

    @property
    def code(self) -> int | None:
        """The command's exit code, negative for a signal; None while it runs."""
        while "code" not in self._heard and self._hear(0):
            pass
        return int(self._heard["code"]) if "code" in self._heard else None

    def wait(self) -> None:
        """Wait for its end."""
        while "code" not in self._heard and self._hear(None):
            pass

    def processes(self) -> list[procfs.Process]:
        """The command's process and its descendants that have not ended."""
        return supervisor.family(self.pid, self._process.pid)

    def pids(self) -> set[int]:
        """The PIDs of `processes`."""
        return {process.pid for process in self.processes()}

    def resident_bytes(self) -> int:
        """The sum of their resident memory; shared memory counts once per process."""
        return sum(process.resident for process in self.processes())

    def hurry(self) -> None:
        """Kill all processes now, from any thread; `end` must still be called."""
        self._tell(b"k")

    def end(self) -> tuple[int, ...]:
        """End all processes and wait for that; return the PIDs of those that can't be killed.

        Idempotent, also if an exception interrupted it.
        """
        self._tell(b"e")
        while self._process.poll() is None:
            self._hear(_LOOK_S)
        while self._hear(0):
            pass
        # Without a last line the supervisor was killed, and the kernel has killed the command, but
        # not the command's descendants.
        if "left" not in self._heard:
            supervisor.send(self.pids() if self.pid else (), signal.SIGKILL)
        self._life.close()
        self._reports.close()
        return tuple(map(int, self._heard.setdefault("left", "").split()))

    def _tell(self, what: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # the supervisor has ended
            os.write(self._life.fileno(), what)

    def _hear(self, seconds: float | None) -> bool:
        """Take in the supervisor's next lines; False if none came in these seconds (None: ever)."""
        if self._reports.closed or not select.select([self._reports], [], [], seconds)[0]:
            return False
        heard = self._reports.read(4096)
        if not heard:  # the supervisor has ended, and so has the command
            self._heard.setdefault("code", str(-signal.SIGKILL))
            return False
        *lines, self._report = (self._report + heard).split(b"\n")
        for line in lines:
            word, _, rest = line.decode(errors="replace").partition(" ")
            self._heard[word] = rest
        return True
