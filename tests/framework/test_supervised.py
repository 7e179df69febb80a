"""A supervised command ends with all that it started, whatever ends the process that wants it."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from linux_mlx.patience import wait_for
from linux_mlx.processes import runs
from sglang_perf_patches import supervised
from sglang_perf_patches.supervised import Supervised
from sglang_perf_patches.telemetry import procfs

pytestmark = pytest.mark.skipif("sys.platform != 'linux'", reason="looks for processes in /proc")

FAMILY = """
import os, signal, sys, time
note = open(sys.argv[1], "a", buffering=1)
print(os.getpid(), file=note)
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)   # a daemon, deaf
    print(os.getpid(), file=note)
    time.sleep(600)
time.sleep(600)
"""
OWNER = """
import sys, time
from sglang_perf_patches import worker
with worker.Child("family", [sys.argv[1]], limit_s=600) as child:
    print("up", flush=True)
    time.sleep(600)
"""


def alive(pids: list[int]) -> list[int]:
    return [*filter(runs, pids)]


def family(note: Path) -> list[int]:
    def pids() -> list[str]:
        return note.read_text().split() if note.exists() else []

    assert wait_for(lambda: len(pids()) == 2, every_s=0.02), "the family never came"
    return [*map(int, pids())]


def supervise(folder: Path, script: str = FAMILY) -> tuple[Supervised, list[int]]:
    note = folder / "note"
    command = Supervised([sys.executable, "-c", script, str(note)], environment=os.environ)
    return command, family(note)


def gone(pids: list[int]) -> bool:
    return wait_for(lambda: not alive(pids), every_s=0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_does_not_outlive_its_parent(tmp_path: Path, number: int) -> None:
    (tmp_path / "family.py").write_text(FAMILY)
    note = tmp_path / "note"
    search = os.pathsep.join([str(tmp_path), *sys.path])
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(note)], env={**os.environ, "PYTHONPATH": search}
    )
    pids = family(note)
    assert alive(pids) == pids
    owner.send_signal(number)
    owner.wait(300)
    assert gone(pids)


def test_a_killed_supervisor_takes_the_command_with_it(tmp_path: Path) -> None:
    command, pids = supervise(tmp_path)
    assert {process.pid for process in command.processes()} >= set(pids)
    os.kill(command._process.pid, signal.SIGKILL)
    assert gone(pids[:1])
    assert command.end() == []
    assert command.code == -signal.SIGKILL
    for pid in alive(pids):  # an orphan of no one's
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL),
        ("raise SystemExit(-1)", 255),
    ],
)
def test_how_a_command_ended(script: str, code: int) -> None:
    command = Supervised([sys.executable, "-c", script], environment=os.environ)
    assert ended(command) == code
    assert command.end() == []


def ended(command: Supervised) -> int:
    assert wait_for(lambda: command.code is not None, every_s=0.02)
    return command.code or 0


def test_what_a_failed_command_started_ends_with_it(tmp_path: Path) -> None:
    command, pids = supervise(tmp_path)
    os.kill(pids[0], signal.SIGKILL)
    assert ended(command) == 128 + signal.SIGKILL
    assert gone(pids)
    assert command.end() == []


def test_what_a_successful_command_started_lives_on(tmp_path: Path) -> None:
    """As the servers of a script that starts them in the background."""
    script = FAMILY.rpartition("time.sleep(600)")[0] + "time.sleep(1)\n"
    command, (parent, daemon) = supervise(tmp_path, script)
    assert gone([parent])
    assert command.code is None
    assert [process.pid for process in command.processes()] == [daemon]
    assert command.end() == []
    assert gone([daemon])
    assert command.code == 0


def test_a_family_is_the_same_where_there_is_only_ps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Mac; ``ps`` itself is not of the family, or it would never end."""
    if not shutil.which("ps"):
        pytest.skip("there is no ps")
    with subprocess.Popen(["sleep", "600"]) as child:
        by_proc = {process.pid for process in supervised._family(os.getpid())}
        monkeypatch.setattr(procfs, "HAS_PROC", False)
        assert {process.pid for process in supervised._family(os.getpid())} == by_proc
        assert child.pid in by_proc
        child.kill()
