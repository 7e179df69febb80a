"""The process between a command and its caller, which ends the command with all descendants.

Its stdin is a pipe from the caller. The kernel closes it however the caller ends, also by SIGKILL
or out of memory, so the end of stdin is the signal to end. On Linux, orphaned descendants become
children of this process, so they can still be found.
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
from collections.abc import Callable, Collection, Iterable, Sequence

from ..telemetry import procfs

_ASK_REST_S = 3.0
_KILL_S = 30.0
_LOOK_S = 0.1
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_library = ctypes.CDLL(None)  # made before a fork, not in its child


def main(words: Sequence[str]) -> None:
    """Start a command, report on it, and end it.

    The words are the descriptor to write to, the seconds that the command gets after SIGTERM, and
    the command. This writes a line when the command has started (``pid N``) or can't be started
    (``error TEXT``), when it has ended (``code N``, negative for a signal), and finally ``left``
    with the PIDs of processes that can't be killed.
    """
    writer, polite_s, *command = words
    _Supervisor(int(writer)).run(command, float(polite_s))


def family(
    pid: int, supervisor: int, known: Collection[tuple[int, str]] = ()
) -> list[procfs.Process]:
    """The command with this PID, below this supervisor, and its descendants that have not ended.

    `known` has the PID and start of processes that are its descendants too.
    """
    table = procfs.table()
    mine = {
        process.pid
        for process in table
        if pid in (process.group, process.session) or (process.pid, process.born) in known
    }
    return [
        process
        for process in procfs.descendants(table, {supervisor, *mine})
        if process.pid != supervisor and not process.has_ended
    ]


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes, some of which may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


class _Supervisor:
    def __init__(self, writer: int) -> None:
        self.writer = writer
        self.is_urgent = False
        self.woken, waker = os.pipe()
        self.heard = [0, self.woken]
        os.set_blocking(waker, False)
        os.set_blocking(self.woken, False)
        for number in (*_TO_END, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self.known: set[tuple[int, str]] = set()
        self.code: int | None = None

    def run(self, command: Sequence[str], polite_s: float) -> None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            # If this process is killed, the kernel kills the command too.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        except OSError as error:
            self.say(f"error {error.strerror}")
            return
        self.pid = process.pid
        process.returncode = 0  # `reap` waits for it: Popen must not
        self.say(f"pid {self.pid}")
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)  # else the reader of the command's output would not see its end
        while not self.is_told():
            pass
        self.end(polite_s)

    def is_told(self, seconds: float | None = None) -> bool:
        """Wait for the next event; whether it means that the command must end."""
        ready = select.select(self.heard, [], [], seconds)[0]
        is_told = 0 in ready  # whatever comes from the caller, or the end of its pipe, means that
        if is_told:
            told = os.read(0, 64)
            self.is_urgent |= b"k" in told
            if not told:
                self.heard.remove(0)
        if self.woken in ready:
            is_told |= any(number in _TO_END for number in os.read(self.woken, 4096))
        self.reap()
        return is_told

    def end(self, polite_s: float) -> None:
        """End the family: terminate first, then kill."""
        if polite_s > 0:
            if self.code is None:
                send([self.pid], signal.SIGTERM)
                self.wait(lambda: self.code is None, polite_s)
            if rest := self.family():
                send(rest, signal.SIGTERM)
                self.wait(lambda: bool(self.family()), _ASK_REST_S)
        deadline = time.monotonic() + _KILL_S
        while left := self.family():
            send(left, signal.SIGKILL)
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_S / 10)
        self.reap()
        self.say(" ".join(["left", *map(str, left)]))

    def wait(self, goes_on: Callable[[], bool], seconds: float) -> None:
        """Wait while `goes_on`, at most `seconds`, and only until `is_urgent`."""
        deadline = time.monotonic() + seconds
        while goes_on() and time.monotonic() < deadline and not self.is_urgent:
            self.is_told(_LOOK_S)

    def family(self) -> list[int]:
        """The PIDs of the command and its descendants that have not ended.

        `known` keeps those seen before: on systems without subreapers an orphan is no descendant.
        """
        self.reap()
        members = family(self.pid, os.getpid(), self.known)
        self.known |= {(process.pid, process.born) for process in members}
        return [process.pid for process in members]

    def reap(self) -> None:
        """Wait for every child that has ended, adopted orphans too."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self.pid:
                    self.code = os.waitstatus_to_exitcode(status)
                    self.say(f"code {self.code}")

    def say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the reader is gone
            os.write(self.writer, f"{line}\n".encode())


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _library.prctl(option, value, 0, 0, 0)
