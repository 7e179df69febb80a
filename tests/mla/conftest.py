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
    """``checked(release, patches)``: of one process, each patch's line and its check's error."""

    @cache
    def run(release: str, patches: tuple[str, ...]) -> dict[str, Any]:
        lines = released.answers(released.tree(release), _WORKER, *patches)
        errors = {line["check"]: line["error"] for line in lines if "check" in line}
        proved = {line["patch"]: line for line in lines if "patch" in line}
        assert set(proved) == set(errors) == set(patches)
        return {id: (proved[id], errors[id]) for id in patches}

    return run
