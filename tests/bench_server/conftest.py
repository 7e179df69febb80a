"""Fixtures of the tests of ``bench server``."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from linux_mlx.server import free_port

sys.path.insert(0, str(Path(__file__).parents[1] / "framework"))
sys.path.insert(0, str(Path(__file__).parent))

from served import Bench
from throwaway import Throwaway


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """The throwaway package with the two programs; whatever a test leaves running is killed."""
    package = Throwaway.write(tmp_path)
    package.cwd = package.site
    here = Path(__file__).parent
    package.put("program.py", (here / "program.py").read_text())
    package.put("sglang/bench_serving.py", (here / "client.py").read_text())
    package.put("sitecustomize.py", "import throwaway_patches as t\nt.use(t.STEP)\n")
    server_bench = Bench(package, tmp_path / "pids", free_port())
    yield server_bench
    for pid in server_bench.left():
        os.kill(pid, signal.SIGKILL)
