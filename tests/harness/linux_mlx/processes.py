"""Runs commands in their own process groups, so that their child processes end with them."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_PATIENCE_S = 20


class Failure(Exception):
    """A command failed; the message says how, and quotes the command's output."""


@contextmanager
def started(
    command: Sequence[str | Path], *, variables: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` with its output in `log`; its whole group ends with the block in any case.

    Ctrl-C reaches only this process, not the group, so this can shut a server down in order.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(variables),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)


def members(group: int) -> list[int]:
    """The running processes of a group; zombies do not count."""
    pids = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    return [pid for pid in pids if _running_in(pid) == group]


def runs(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    return _running_in(pid) is not None


def last_lines(log: Path, count: int = 25) -> str:
    """The end of a log, for the report of a failure."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate the leader, then kill the rest of the group; a second Ctrl-C kills at once."""
    try:
        process.terminate()
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        while members(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
            process.poll()
            time.sleep(0.05)
        process.wait()


def _running_in(pid: int) -> int | None:
    """The group of a running process; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name may contain any character, even parentheses; the fields follow the last one.
    state, _parent, group = text.rpartition(")")[2].split()[:3]
    return None if state == "Z" else int(group)
