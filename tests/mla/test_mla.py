"""The mla patches on the released code: what the kernels read is the same bit by bit.

``tests.proof.mla`` shows that, with inputs from hypothesis. ``check_*.py`` check that the work is
gone, and what is left to stock. A release stands for a group with identical code.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import released
from matrix import applying, newest_of_each_group
from sglang_perf_patches import sets

RELEASES = newest_of_each_group("mla")
JOBS = Path(__file__).with_name("jobs.py")


@cache
def checked(release: str, patches: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, str | None]]:
    """The line of each patch's proof, and what its checks raised, from one process."""
    jobs: list[released.Job] = [("prove", {"patches": patches})]
    jobs += [("check", {"patch": patch}) for patch in patches]
    proved, *checks = (
        line["value"] if "value" in line else pytest.fail(f"{line['job']}: {line['error']}")
        for line in released.play(released.tree(release), JOBS, jobs)
    )
    lines = {line["case"]: line for line in proved}
    assert set(lines) == set(patches)
    errors = {
        f"{patch}: {name}": error
        for patch, of_patch in zip(patches, checks, strict=True)
        for name, error in of_patch.items()
    }
    return lines, errors


@pytest.mark.parametrize("release", RELEASES)
def test_kernels_read_the_same_to_the_bit(shown: Any, release: str) -> None:
    lines, _ = checked(release, shown("mla", release, applying("mla", release), RELEASES))
    assert all(line.get("compared", 0) > 0 for line in lines.values()), lines


@pytest.mark.parametrize("release", RELEASES)
def test_the_work_is_gone_but_in_exceptions(shown: Any, release: str) -> None:
    patches = shown("mla", release, applying("mla", release), RELEASES)
    _, errors = checked(release, patches)
    assert len(errors) >= len(patches)
    failed = [f"{name}\n{error}" for name, error in errors.items() if error is not None]
    assert not failed, "\n\n".join(failed)


def test_every_patch_is_proved_on_some_release() -> None:
    patches = {patch.id for patch in sets.declared("mla").patches}
    assert patches == {id for release in RELEASES for id in applying("mla", release)}
