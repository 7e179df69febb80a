"""Commands that end with everything they started, even if the process that started them is killed.

`Supervised` starts a supervisor (`main`) in a process of its own, and that starts the command. Its
stdin is a pipe from the first process. The kernel closes the pipe however that process ends, also
by SIGKILL or out of memory. On Linux, orphaned descendants of the command become children of the
supervisor, so it finds them. The supervisor imports only the standard library and `procfs`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from .telemetry import procfs

_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from sglang_perf_patches import supervised; supervised.main(sys.argv[2:])"
)
_ROOT = str(Path(__file__).parents[1])
_POLITELY, _NOW = b"p", b"n"
_ASK_S, _ASK_REST_S, _KILL_S, _LOOK_S = 20.0, 3.0, 30.0, 0.1
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_library = ctypes.CDLL(None)  # made before a fork, not in its child


class Supervised:
    """A command that ends with all of its descendants, at the latest when this process does.

    It starts at once, with an empty stdin. `stdout` and `stderr` are as for `subprocess.Popen`, in
    text mode. If the command fails, its descendants are killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START, _ROOT, *command],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert self._process.stdin is not None  # a pipe
        self._stdin = self._process.stdin
        self.stdout = self._process.stdout

    @property
    def code(self) -> int | None:
        """The command's exit code, 128 + N after signal N; None while it or a descendant runs."""
        return self._process.poll()

    def processes(self) -> list[procfs.Process]:
        """The command's process and its descendants that have not ended."""
        return _family(self._process.pid)

    def resident_bytes(self) -> int:
        """The sum of their resident memory; shared memory counts once per process."""
        return sum(process.resident for process in self.processes())

    def hurry(self) -> None:
        """Kill all processes now, from any thread; `end` must still be called."""
        self._tell(_NOW)

    def end(self) -> list[int]:
        """End all processes and wait for that; return the PIDs of those that can't be killed.

        They get SIGTERM first, and some seconds. Idempotent, also if an exception interrupted it.
        """
        members = self.processes()
        self._tell(_POLITELY)
        self._process.wait()
        self._stdin.close()
        left = [each.pid for each in members if procfs.start_token(each.pid) == each.born]
        _send(left, signal.SIGKILL)  # if the supervisor was killed, nothing else has tried
        return left

    def _tell(self, how: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # the supervisor has ended
            os.write(self._stdin.fileno(), how)


def main(command: Sequence[str]) -> None:
    """Start a command, and exit as it did; end its descendants before."""
    # `_POLITELY` from stdin tells this to end the command. Anything more, and the end of stdin,
    # tells it to kill all processes now.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)  # a script's `kill 0` is not for this process
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # not as the caller's, also for the command
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # If this process is killed, the kernel kills the command too.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)  # else the reader of the command's output would not see its end
    if _must_end_politely(process):
        process.terminate()
        _wait_until(lambda: process.poll() is not None, _ASK_S)
        _send([each.pid for each in _family(os.getpid())], signal.SIGTERM)
        _wait_until(lambda: not _family(os.getpid()), _ASK_REST_S)
    deadline = time.monotonic() + _KILL_S
    while (left := _family(os.getpid())) and time.monotonic() < deadline:
        _send([each.pid for each in left], signal.SIGKILL)
        time.sleep(_LOOK_S / 10)
    code = process.poll() or 0
    sys.exit(code if code >= 0 else 128 - code)


def _must_end_politely(process: subprocess.Popen[bytes]) -> bool:
    """Wait until a command must end, or has ended; False if nothing of it may live on."""
    while not _is_told(_LOOK_S):
        code = process.poll()
        if code or (code == 0 and not _family(os.getpid())):
            return False
    return os.read(0, 1) == _POLITELY


def _wait_until(is_over: Callable[[], bool], seconds: float) -> None:
    """Wait at most some seconds, and only until the caller is in a hurry."""
    deadline = time.monotonic() + seconds
    while not is_over() and time.monotonic() < deadline and not _is_told(_LOOK_S):
        pass


def _is_told(seconds: float) -> bool:
    """Whether there is something from stdin, or its end, within some seconds."""
    return bool(select.select([0], [], [], seconds)[0])


def _family(leader: int) -> list[procfs.Process]:
    """A leader's process group and all descendants, without itself and without those that ended."""
    # Where orphans do not become the leader's children, most are still in its group.
    table = procfs.table()
    mine = {leader, *(each.pid for each in table if each.group == leader)}
    while more := {each.pid for each in table if each.parent in mine} - mine:
        mine |= more
    return [each for each in table if each.pid in mine - {leader} and not each.has_ended]


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it may have ended
            os.kill(pid, number)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _library.prctl(option, value, 0, 0, 0)
