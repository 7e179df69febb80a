"""What the tests of ``bench server`` share: a throwaway sglang with a server program."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from throwaway import Throwaway

from linux_mlx.patience import limit_s


@dataclass
class Bench:
    """A folder with a throwaway sglang, a server program and a bench_serving that talk HTTP."""

    throwaway: Throwaway
    pids: Path
    port: int

    def command(self, *words: str, behaviour: str = "") -> list[str]:
        """``bench server`` with `words`, on a server program that behaves as told."""
        server = [sys.executable, "program.py", "--pids", str(self.pids), "--port", str(self.port)]
        bench = [sys.executable, "-m", "sglang_perf_patches", "bench", "server", *words, "--"]
        return [*bench, *server, *(("--behaviour", behaviour) if behaviour else ())]

    def without_package(self, command: list[str]) -> list[str]:
        """The same, with a server whose Python does not find this package."""
        at = command.index("--") + 1
        search = f"PYTHONPATH={self.throwaway.site}"
        return [*command[:at], "env", "-u", "PYTHONPATH", search, *command[at:]]

    def wait_for_family(self) -> None:
        """Wait until the server program has started its other process."""
        while not self.pids.exists() or len(self.pids.read_text().split()) < 2:
            time.sleep(0.05)

    def start(self, command: list[str], **variables: str | None) -> subprocess.Popen[str]:
        """Start it."""
        return subprocess.Popen(
            command,
            cwd=self.throwaway.site,
            env=self.throwaway.environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, command: list[str], **variables: str | None) -> subprocess.CompletedProcess[str]:
        """Run it to the end."""
        with self.start(command, **variables) as process:
            try:
                out, err = process.communicate(timeout=limit_s())
            finally:
                process.kill()
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def left(self) -> list[int]:
        """The processes of the server program that are still running."""
        if not self.pids.exists():
            return []
        return [pid for pid in map(int, self.pids.read_text().split()) if runs(pid)]


def runs(pid: int) -> bool:
    """Whether there is such a process and it is still running."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def until(process: subprocess.Popen[str], words: str) -> str:
    """What it wrote to stderr before a line with these words."""
    assert process.stderr is not None
    seen = ""
    deadline = time.monotonic() + limit_s()
    while time.monotonic() < deadline:
        line = process.stderr.readline()
        seen += line
        if words in line:
            return seen
        if not line:
            break
    raise AssertionError(f"never said {words!r}: {seen}")
