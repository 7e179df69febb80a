"""What all tests share: the tier a run plays, and the project's own cases run on a release."""

import os
import uuid
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import passes
import released
import tiers
from sglang_perf_patches import sets
from tests.proof import needs_no_scheduler

# The same examples in each run, however slow the machine is.
hypothesis.settings.register_profile(
    "same",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("same")

_SCRIPT = Path(__file__).parent / "harness" / "prove.py"

Proved = Callable[[str, tuple[str, ...]], dict[str, Any]]
Shown = Callable[[str, str, tuple[str, ...], Collection[str]], tuple[str, ...]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--all``: see `tiers`. ``--fresh``: see `passes`."""
    parser.addoption("--all", action="store_true", help="play the whole matrix of releases")
    parser.addoption("--fresh", action="store_true", help="run what has passed before, too")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "whole_matrix: left out of the default tier")
    config.addinivalue_line("markers", "sampled: three releases in the default tier")
    config.addinivalue_line("markers", "newest: only the newest release in the default tier")
    config.addinivalue_line("markers", "shares_nothing: each case may run in a process of its own")
    if not tiers.is_whole(config):
        os.environ.setdefault(tiers.DEPTH, "1")
    os.environ.setdefault(released.RUN, uuid.uuid4().hex)  # which pytest-xdist's processes have
    config.pluginmanager.register(passes.Remembered(config), "passes")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = tiers.left_out(config, items)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        without = set(map(id, left_out))
        items[:] = [item for item in items if id(item) not in without]
    items.sort(key=tiers.weight)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(tiers.group_of(item)))


@pytest.fixture(scope="session")
def shown(pytestconfig: pytest.Config) -> Shown:
    """``shown(name, release, patches, matrix)``: those of a set's patches that this run proves."""

    def choose(
        name: str, release: str, patches: tuple[str, ...], matrix: Collection[str]
    ) -> tuple[str, ...]:
        if tiers.is_whole(pytestconfig):
            return patches
        return tiers.shown_there(sets.declared(name).patches, release, patches, matrix)

    return choose


@pytest.fixture(scope="session")
def proved() -> Proved:
    """``proved(release, patches)``: the line of each patch's case, from one process run once."""

    @cache
    def run(release: str, patches: tuple[str, ...]) -> dict[str, Any]:
        lines = []
        for beginning in ("stubs", "mlx"):  # MLX's runner needs stand-ins of another kind
            some = [each for each in patches if needs_no_scheduler(each) == (beginning == "mlx")]
            if some:
                place = released.tree(release, beginning=beginning)
                lines += released.answers(place, _SCRIPT, *some)
        by_patch = {line["case"]: line for line in lines}
        assert set(by_patch) == set(patches)
        return by_patch

    return run
