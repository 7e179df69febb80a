"""Fixtures of the mamba tests: what stock sglang of a release and the patches compute on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import released
import tiers

_WORKER = Path(__file__).with_name("worker.py")

_SLOTS = Path(__file__).with_name("slots_worker.py")

Found = Callable[..., Any]
Served = Callable[..., Any]


@pytest.fixture(scope="session")
def found() -> Found:
    """``found(release)``: what `worker.py` printed on that release, run once; or one part of it."""

    @cache
    def run(release: str, *parts: str) -> Any:
        return released.answers(released.tree(release), _WORKER, *parts)[-1]

    return run


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--slot-episodes N``: random episodes on each release; else 60, or 20 by default."""
    parser.addoption("--slot-episodes", type=int)


@pytest.fixture(scope="session")
def slot_episodes(request: pytest.FixtureRequest) -> int:
    """How many episodes with few slots are played."""
    asked = request.config.getoption("--slot-episodes", default=None)
    return int(asked or (60 if tiers.is_whole(request.config) else 20))


@pytest.fixture(scope="session")
def served() -> Served:
    """``served(release, *jobs)``: what `slots_worker.py` printed of these jobs on that release."""

    def run(release: str, *jobs: str) -> Any:
        return released.answers(released.tree(release), _SLOTS, *jobs, limit_s=None)[-1]

    return run
