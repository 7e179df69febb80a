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

_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from sglang_perf_patches.supervised import supervisor; supervisor.main(sys.argv[2:])"
)
_ROOT = Path(__file__).parents[2]
_LOOK_S = 0.1


class Supervised:
    """A command that ends with all of its descendants, at the latest when this process does.

    It starts at once, with an empty stdin, in a session and process group of its own.

    Args:
        command: its words.
        environment: its variables.
        stdout: as for `subprocess.Popen`, in text mode.
        stderr: likewise.
        polite_s: seconds that it gets to end after SIGTERM; 0 kills it at once.

    Attributes:
        pid: its PID.
        stdout: its output, if it is a pipe.

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
        life, self._life = os.pipe()
        self._reader, writer = os.pipe()
        self._text = b""
        self._code: int | None = None
        self._left: tuple[int, ...] | None = None
        words = [str(_ROOT), str(life), str(writer), str(polite_s), *command]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START, *words],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                text=True,
                errors="replace",
                pass_fds=(life, writer),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._life)
            os.close(self._reader)
            raise
        finally:
            os.close(life)
            os.close(writer)
        self.stdout = self._process.stdout
        self.pid = 0
        self._error = "its supervisor could not be started"
        while not self.pid and self._read(None):
            pass
        if not self.pid:
            self.end()
            raise OSError(0, self._error)

    @property
    def code(self) -> int | None:
        """The command's exit code, negative for a signal; None while it runs."""
        while self._code is None and self._read(0):
            pass
        return self._code

    def wait(self) -> int:
        """Wait for its end, and return its exit code, negative for a signal."""
        while self._code is None and self._read(None):
            pass
        return -signal.SIGKILL if self._code is None else self._code

    def processes(self) -> list[procfs.Process]:
        """The command's process and its descendants that have not ended."""
        table = procfs.table()
        mine = {process.pid for process in table if self.pid in (process.group, process.session)}
        family = procfs.descendants(table, {self._process.pid, *mine})
        return [
            process
            for process in family
            if process.pid != self._process.pid and not process.has_ended
        ]

    def pids(self) -> set[int]:
        """The PIDs of `processes`."""
        return {process.pid for process in self.processes()}

    def resident_bytes(self) -> int:
        """The sum of their resident memory; shared memory counts once per process."""
        return sum(process.resident for process in self.processes())

    def hurry(self) -> None:
        """Kill all processes now, from any thread; `end` must still be called."""
        self._tell(b"k")

    def end(self, *, is_urgent: bool = True) -> tuple[int, ...]:
        """End all processes and wait for that. Idempotent, also if an exception interrupted it.

        Args:
            is_urgent: whether to kill instead of waiting politely; `hurry` does so later.

        Returns:
            the PIDs of processes that can't be killed.
        """
        if self._life < 0:
            return self._left or ()
        self._tell(b"k" if is_urgent else b"e")
        while self._process.poll() is None:
            self._read(_LOOK_S)
        while self._read(0):
            pass
        # Without a last line the supervisor was killed, and the kernel has killed the command, but
        # not the command's descendants.
        if self._left is None:
            self._left = ()
            for process in self.processes() if self.pid else ():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGKILL)
        life, self._life = self._life, -1
        os.close(life)
        os.close(self._reader)
        return self._left

    def _tell(self, what: bytes) -> None:
        with contextlib.suppress(OSError):  # the supervisor has ended
            if self._life >= 0:
                os.write(self._life, what)

    def _read(self, seconds: float | None) -> bool:
        """Wait for the supervisor's next lines and take them in; False if none came.

        Args:
            seconds: how long to wait; None for no limit.
        """
        if self._life < 0 or not select.select([self._reader], [], [], seconds)[0]:
            return False
        heard = os.read(self._reader, 4096)
        if not heard:
            if self._code is None and self.pid:
                self._code = -signal.SIGKILL
            return False
        *lines, self._text = (self._text + heard).split(b"\n")
        for line in lines:
            word, _, rest = line.decode(errors="replace").partition(" ")
            if word == "pid":
                self.pid = int(rest)
            elif word == "error":
                self._error = rest
            elif word == "code":
                self._code = int(rest)
            elif word == "left":
                self._left = tuple(map(int, rest.split()))
        return True
