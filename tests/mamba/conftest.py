"""Fixtures of the mamba tests: what stock sglang of a release and the patches compute on a CPU."""

from __future__ import annotations

import json
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

Found = Callable[[str], Any]


@pytest.fixture(scope="session")
def found() -> Found:
    """``found(release)``: what `worker.py` printed on that release, run once."""

    @cache
    def run(release: str) -> Any:
        python = environment(_HERE.parent / "support" / "cpu.txt").python
        search = f"{releases.tree(release)}:{_HERE.parents[1] / 'src'}"
        done = subprocess.run(
            [python, _HERE / "worker.py"],
            env=variables(PYTHONPATH=search, OMP_NUM_THREADS="1"),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run
