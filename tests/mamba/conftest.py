"""Fixtures of the mamba tests: what stock sglang of a release and the patches compute on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import released

_WORKER = Path(__file__).with_name("worker.py")

Found = Callable[..., Any]


@pytest.fixture(scope="session")
def found() -> Found:
    """``found(release)``: what `worker.py` printed on that release, run once; or one part of it."""

    @cache
    def run(release: str, *parts: str) -> Any:
        return released.answers(released.tree(release), _WORKER, *parts)[-1]

    return run
