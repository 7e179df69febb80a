"""Fixtures of the mamba tests: what stock sglang of a release and the patches compute on a CPU."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import released
import tiers

_HERE = Path(__file__).parent

Found = Callable[..., Any]


@pytest.fixture(scope="session")
def found() -> Found:
    """``found(release, module, job)``: what a job of a module here found there, played once."""

    @cache
    def run(release: str, module: str, job: str, **arguments: Any) -> Any:
        place = released.tree(release)
        return released.value(place, _HERE / f"{module}.py", job, arguments=arguments)

    return run


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--slot-episodes N``: random episodes on each release; else 60, or 10 by default."""
    parser.addoption("--slot-episodes", type=int)


@pytest.fixture(scope="session")
def slot_episodes(request: pytest.FixtureRequest) -> int:
    """How many episodes with few slots are played."""
    asked = request.config.getoption("--slot-episodes", default=None)
    return int(asked or (60 if tiers.is_whole(request.config) else 10))
