"""What every patch passes on a released tree, whatever it changes: the checks of `each_patch`."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import released
from matrix import applying, newest_of_each_group
from sglang_perf_patches import sets
from tests.proof import needs_no_scheduler

JOBS = Path(__file__).with_name("each_patch.py")


def of_kind(name: str, release: str) -> list[str]:
    """The patches of a set that apply; those of MLX's scheduler are a kind of their own."""
    of_set = applying(name.partition(" ")[0], release)
    if not name.startswith("mlx"):
        return list(of_set)
    return [each for each in of_set if needs_no_scheduler(each) == (name == "mlx")]


MATRIX = [
    pytest.param(name, release, marks=() if release == releases[-1] else pytest.mark.whole_matrix)
    for name in (*sets.NAMES, "mlx scheduler")
    for known in [newest_of_each_group(name.partition(" ")[0])]
    for releases in [[each for each in known if of_kind(name, each)]]
    for release in releases
]
EACH = pytest.mark.parametrize(("name", "release"), MATRIX)


CYCLES = 5
"""How often all patches go off and on in each of ten orders."""


@cache
def checked(name: str, release: str) -> tuple[list[str], dict[str, str], dict[str, Any], Any]:
    """The patches that apply, those without modules here, the checks' ends and the orders'."""
    beginning = "mlx" if name == "mlx" else "stubs"
    place = released.tree(release, beginning=beginning, imported=False)
    patches = of_kind(name, release)
    jobs: list[released.Job] = [("begin", {"patches": patches}), ("imported_later", {})]
    jobs += [("checks", {"patch": patch}) for patch in patches]
    jobs.append(("in_any_order", {"cycles": CYCLES}))
    begun, later, *lines, orders = released.play(place, JOBS, jobs)
    assert "error" not in begun, begun
    assert "error" not in later, later["error"]
    missing = later["value"]
    ends = {
        patch: line["value"] if "value" in line else {"all": line["error"]}
        for patch, line in zip(patches, lines, strict=True)
        if patch not in missing
    }
    return begun["value"], missing, ends, orders


@EACH
def test_patches_go_live_as_their_modules_are_imported(name: str, release: str) -> None:
    patches, missing, *_ = checked(name, release)
    assert patches == of_kind(name, release)
    assert set(missing) <= {"mla.draft-metadata"}, missing


@EACH
def test_each_patch_passes_each_check(name: str, release: str) -> None:
    *_, ends, _ = checked(name, release)
    assert ends
    failed = [
        f"{patch}, {check}: {error}"
        for patch, checks in ends.items()
        for check, error in checks.items()
        if error is not None
    ]
    assert not failed, "\n".join(failed)
    assert all(len(checks) == 6 for checks in ends.values())


@EACH
def test_patches_go_off_and_on_in_any_order(name: str, release: str) -> None:
    *_, orders = checked(name, release)
    assert orders.get("value") == 10 * CYCLES, orders
