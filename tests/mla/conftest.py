"""Fixtures of the mla tests: checks that ran in a process of each sglang release, on a CPU."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import released

_JOBS = Path(__file__).with_name("jobs.py")

Checked = Callable[[str, tuple[str, ...]], tuple[dict[str, Any], dict[str, str | None]]]


@pytest.fixture(scope="session")
def checked() -> Checked:
    @cache
    def run(release: str, patches: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, str | None]]:
        jobs: list[released.Job] = [("prove", {"patches": patches})]
        jobs += [("check", {"patch": patch}) for patch in patches]
        proved, *checks = (
            line["value"] if "value" in line else pytest.fail(f"{line['job']}: {line['error']}")
            for line in released.play(released.tree(release), _JOBS, jobs)
        )
        lines = {line["case"]: line for line in proved}
        assert set(lines) == set(patches)
        errors = {
            f"{patch}: {name}": error
            for patch, of_patch in zip(patches, checks, strict=True)
            for name, error in of_patch.items()
        }
        return lines, errors

    return run
