"""What the tests of ``bench server`` share: a throwaway sglang with a server program."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from throwaway import Throwaway

from linux_mlx.patience import wait_for
from linux_mlx.processes import runs


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
        assert wait_for(lambda: len(self.started()) == 2, every_s=0.05)

    def start(self, command: list[str], **variables: str | None) -> subprocess.Popen[str]:
        return self.throwaway.start(command, **variables)

    def run(self, command: list[str], **variables: str | None) -> subprocess.CompletedProcess[str]:
        return self.throwaway.execute(*command, **variables)

    def started(self) -> list[int]:
        """The processes of the server program, running or not."""
        return [*map(int, self.pids.read_text().split())] if self.pids.exists() else []

    def left(self) -> list[int]:
        return [*filter(runs, self.started())]


def until(process: subprocess.Popen[str], words: str) -> None:
    """Read what it writes to stderr, up to a line with these words."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if words in line:
            return
    raise AssertionError(f"never said {words!r}: {''.join(seen)}")
