"""A command below a `supervisor`: started, looked at, and ended with all that came of it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
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
    """A command that ends with all that it started, at the latest when this process does."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
        polite_s: float = 0.0,
    ) -> None:
        """Start it, with nothing to read, in a session and a process group of its own.

        Args:
            command: its words.
            environment: its variables.
            stdout: as for `subprocess.Popen`; text.
            stderr: likewise.
            polite_s: how long it may take to end when it is asked to; 0 for killing at once.

        Raises:
            OSError: there is no such command, or it can't be run.
        """
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
        """Its exit code, once it has ended."""
        while self._code is None and self._read(None):
            pass
        return -signal.SIGKILL if self._code is None else self._code

    def processes(self) -> list[procfs.Process]:
        """The command's process and all that came of it, as far as they have not ended."""
        table = procfs.table()
        mine = {process.pid for process in table if self.pid in (process.group, process.session)}
        family = procfs.descendants(table, {self._process.pid, *mine})
        return [
            process
            for process in family
            if process.pid != self._process.pid and not process.has_ended
        ]

    def hurry(self) -> None:
        """Kill all of it now, from any thread; `end` is still to be called."""
        self._tell(b"k")

    def end(self, is_urgent: Callable[[], bool] = lambda: True) -> tuple[int, ...]:
        """End all of it.

        Args:
            is_urgent: whether it is to be killed now, asked again and again.

        Returns:
            the PIDs of what can't be killed.
        """
        if self._life < 0:
            return self._left or ()
        self._tell(b"e")
        has_hurried = False
        while self._process.poll() is None:
            if not has_hurried and is_urgent():
                has_hurried = True
                self.hurry()
            self._read(_LOOK_S)
        while self._read(0):
            pass
        if self._left is None:  # the supervisor was killed, and the kernel has killed the command
            self._left = ()
            for process in self.processes() if self.pid else ():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGKILL)
        os.close(self._life)
        os.close(self._reader)
        self._life = -1
        return self._left

    def _tell(self, what: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended
            if self._life >= 0:
                os.write(self._life, what)

    def _read(self, seconds: float | None) -> bool:
        """Read what the supervisor says, waiting so long; False if it said nothing."""
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
