"""What tests of several sets share: the project's own cases, run on a release on this CPU."""

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

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from linux_mlx.environments import environment, variables
from sglang_perf_patches import releases

_HERE = Path(__file__).parent
_LIMIT_S = 900

Proved = Callable[[str, tuple[str, ...]], dict[str, Any]]


@pytest.fixture(scope="session")
def proved() -> Proved:
    """``proved(release, patches)``: the line of each patch's case, from one process, run once."""

    @cache
    def run(release: str, patches: tuple[str, ...]) -> dict[str, Any]:
        python = environment(_HERE / "support" / "cpu.txt").python
        search = [releases.tree(release), _HERE.parent / "src"]
        done = subprocess.run(
            [python, "-W", "ignore", _HERE / "support" / "prove.py", *patches],
            env=variables(PYTHONPATH=os.pathsep.join(map(str, search)), OMP_NUM_THREADS="1"),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"patch"')]
        found = {line["patch"]: line for line in map(json.loads, lines)}
        assert set(found) == set(patches), f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
        return found

    return run
