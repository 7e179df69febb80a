"""Fixtures of the mlx tests: what stock sglang of a release computes, in its own environment."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import released
from linux_mlx import environments

_JOBS = Path(__file__).with_name("jobs.py")

Found = Callable[..., Any]


@pytest.fixture(scope="session")
def found() -> Found:
    """``found(release, part)``: what that function of `jobs.py` found, run once.

    Releases without an environment of their own are there as files alone. That is enough for parts
    which need no more than the runner.
    """

    @cache
    def run(release: str, part: str, **more: str) -> Any:
        if release in environments.releases():
            place = released.slim(release)
        else:
            place = released.tree(release, beginning="mlx")
        return released.value(place, _JOBS, part, **more)

    return run
