"""The environment of the swa tests: stock sglang's modules on a CPU, and jobs in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
sys.path[:0] = [str(_HERE), str(_ROOT / "examples")]

from linux_mlx.environments import environment, variables  # noqa: E402
from sglang_perf_patches import releases  # noqa: E402

Job = tuple[str, dict[str, Any]]
Jobs = Callable[..., list[dict[str, Any]]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--swa-episodes N``: how many random episodes each release plays."""
    parser.addoption("--swa-episodes", type=int, default=30)


@pytest.fixture(scope="session")
def cpu_python() -> Path:
    """An interpreter that has what sglang imports."""
    return environment(_HERE.parent / "support" / "cpu.txt").python


@pytest.fixture(scope="session")
def run_jobs(cpu_python: Path) -> Jobs:
    """``run_jobs(release, jobs)``: what a process with that release answers, one dict a job."""

    def run(release: str, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        path = [releases.tree(release), _ROOT / "src", _HERE, _HERE.parent / "support"]
        done = subprocess.run(
            [cpu_python, _HERE / "on_release.py"],
            env=variables(PYTHONPATH=os.pathsep.join(map(str, path)), OMP_NUM_THREADS="1"),
            input=json.dumps(jobs),
            capture_output=True,
            text=True,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"job"')]
        answers: list[dict[str, Any]] = [json.loads(line) for line in lines]
        assert len(answers) == len(jobs), f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
        return answers

    return run
