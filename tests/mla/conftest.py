"""Fixtures of the mla tests: checks that ran in a process of each sglang release, on a CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
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
    python = environment(_HERE.parent / "support" / "cpu.txt").python

    @cache
    def run(release: str, checks: tuple[str, ...]) -> dict[str, Any]:
        search = [_overlay(python, release), releases.tree(release), _HERE.parents[1] / "src"]
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


def _overlay(python: Path, release: str) -> Path:
    """A folder with the transformers that a release pins, which precedes the environment's own."""
    pins = _pins(release)
    folder = releases.cache_folder() / "mla-tests" / "-".join(pins).replace("==", "-")
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=folder.parent))
        install = [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            work / "site",
        ]
        subprocess.run([*install, *pins], check=True)
        try:
            (work / "site").rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder


def _pins(release: str) -> tuple[str, str, str]:
    at = releases.KNOWN.index(release)
    transformers = next(
        version
        for first, version in (
            ("0.5.22", "5.19.0"),
            ("0.5.15", "5.12.1"),
            ("0.5.13", "5.8.1"),
            ("0.5.11", "5.6.0"),
            ("0.5.10", "5.3.0"),
            ("0.5.9", "4.57.1"),
        )
        if at >= releases.KNOWN.index(first)
    )
    tokenizers = "0.23.2" if transformers == "5.19.0" else "0.22.2"
    hub = {"5.19.0": "2.4.0", "4.57.1": "0.36.0"}.get(transformers, "1.33.0")
    return (
        f"transformers=={transformers}",
        f"tokenizers=={tokenizers}",
        f"huggingface-hub=={hub}",
    )
