"""Fixtures of the swa tests: jobs in a process of stock sglang's modules on a CPU."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import released

_HERE = Path(__file__).parent
sys.path.insert(0, str(_HERE))

Jobs = Callable[..., list[dict[str, Any]]]
Values = Callable[..., dict[str, Any]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--swa-episodes N``: random episodes on each release; else 30, or 8 in the default tier."""
    parser.addoption("--swa-episodes", type=int)


@pytest.fixture(scope="session")
def run_jobs() -> Jobs:
    def run(release: str, jobs: Sequence[released.Job]) -> list[dict[str, Any]]:
        return released.play(released.tree(release), _HERE / "jobs.py", jobs)

    return run


@pytest.fixture(scope="session")
def values() -> Values:
    """``values(release, jobs)``: what jobs return, none of which may fail, by their names."""

    def run(
        release: str, jobs: Mapping[str, dict[str, Any]], module: str = "jobs"
    ) -> dict[str, Any]:
        place = released.tree(release)
        lines = released.play(place, _HERE / f"{module}.py", list(jobs.items()))
        for line in lines:
            assert "error" not in line, f"{release}, {line['job']}:\n{line.get('error')}"
        return {line["job"]: line["value"] for line in lines}

    return run
