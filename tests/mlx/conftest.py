"""Fixtures of the mlx tests: what stock sglang of a release computes, in its own environment."""

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

from linux_mlx.environments import sglang_environment, variables

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_SHIMS = _ROOT / "examples" / "linux_mlx" / "shims"
_LIMIT_S = 600

Found = Callable[..., Any]


@pytest.fixture(scope="session")
def found() -> Found:
    """``found(release, part)``: what `worker.py` printed for that part, run once."""

    @cache
    def run(release: str, part: str, **more: str) -> Any:
        search = f"{_ROOT / 'src'}:{_SHIMS}"
        environment = sglang_environment(release)
        settings = {"PYTHONPATH": search, "SGLANG_USE_MLX": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [environment.python, _HERE / "worker.py", part],
            env=variables(**settings, **more),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run
