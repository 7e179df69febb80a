"""Fixtures of the mla tests: checks that ran in a process of each sglang release, on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from linux_mlx.environments import environment, variables
from sglang_perf_patches import releases

_HERE = Path(__file__).parent
_LIMIT_S = 900

Checked = Callable[[str, tuple[str, ...]], dict[str, Any]]


@pytest.fixture(scope="session")
def checked() -> Checked:
    """``checked(release, checks)``: each check's traceback or None, from one process."""

    @cache
    def run(release: str, checks: tuple[str, ...]) -> dict[str, Any]:
        python = environment(_HERE.parent / "support" / "cpu.txt").python
        search = [releases.tree(release), _HERE.parents[1] / "src"]
        done = subprocess.run(
            [python, "-W", "ignore", _HERE / "worker.py", *checks],
            env=variables(PYTHONPATH=os.pathsep.join(map(str, search)), OMP_NUM_THREADS="1"),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"check"')]
        found = {line["check"]: line["error"] for line in map(json.loads, lines)}
        assert set(found) == set(checks), f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
        return found

    return run
