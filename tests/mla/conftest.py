"""Fixtures of the mla tests: checks that ran in a process of each sglang release, on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import released

_WORKER = Path(__file__).with_name("worker.py")

Checked = Callable[[str, tuple[str, ...]], dict[str, Any]]


@pytest.fixture(scope="session")
def checked() -> Checked:
    """``checked(release, checks)``: each check's traceback or None, from one process."""

    @cache
    def run(release: str, checks: tuple[str, ...]) -> dict[str, Any]:
        lines = released.answers(released.tree(release), _WORKER, *checks)
        found = {line["check"]: line["error"] for line in lines}
        assert set(found) == set(checks)
        return found

    return run
