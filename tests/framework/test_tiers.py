"""The tiers of tests: the default one leaves out releases, but no body of ours."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import tiers
from sglang_perf_patches import sets
from sglang_perf_patches.model import releases

ROOT = Path(__file__).parents[2]


def test_oldest_newest_and_a_release_of_each_body() -> None:
    matrix = ("0.5.9", "0.5.11", "0.5.12", "0.5.17", "0.5.23")
    assert tiers.covering([], matrix) == {"0.5.9", "0.5.23"}
    assert tiers.covering([{"0.5.11", "0.5.12"}], matrix) == {"0.5.9", "0.5.12", "0.5.23"}
    both = [{"0.5.11", "0.5.12"}, {"0.5.11"}]
    assert tiers.covering(both, matrix) == {"0.5.9", "0.5.11", "0.5.23"}
    assert tiers.covering([{"0.5.9"}, {"0.5.13"}], matrix) == {"0.5.9", "0.5.23"}
    assert tiers.covering([{"0.5.9"}], ()) == set()


def collected(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    # What the user adds to each run of pytest may change what this one prints.
    variables = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.fixture(scope="module")
def default() -> list[str]:
    return collected("tests/releases", *(f"tests/{name}" for name in sets.NAMES))


def played(ids: list[str], file: str) -> set[str]:
    """The releases for which the tests of a file or folder are collected."""
    words = [id.partition("[")[2].rstrip("]") for id in ids if id.startswith(file)]
    return {word.partition("-")[0] for word in words} & set(releases.KNOWN)


@pytest.mark.parametrize("name", sets.NAMES)
def test_every_body_of_a_set_is_played_by_default(default: list[str], name: str) -> None:
    there = played(default, f"tests/{name}/")
    assert releases.KNOWN[-1] in there
    assert len(there) < len(releases.KNOWN) - 5
    for patch in sets.declared(name).patches:
        for install in {variant.install for variant in patch.variants}:
            mine = [one.releases for one in patch.variants if one.install == install]
            where = {release for each in mine for release in each} & set(releases.KNOWN)
            assert not where or where & there, (patch.id, install)


def test_every_release_is_judged_by_default(default: list[str]) -> None:
    assert played(default, "tests/releases/test_verdicts.py") == set(releases.KNOWN)
    assert len(played(default, "tests/releases/test_server_order.py")) < len(releases.KNOWN) / 2


def test_all_and_a_named_release_play_the_rest(default: list[str]) -> None:
    everything = collected("--all", "tests/mla")
    assert set(everything) > {id for id in default if id.startswith("tests/mla/")}
    left_out = next(id for id in everything if id not in default and "[" in id)
    assert collected(left_out) == [left_out]
    release = left_out.partition("[")[2].rstrip("]")
    assert set(collected("tests/mla", "-k", release)) == {id for id in everything if release in id}


def test_what_needs_no_environment_runs_while_the_first_is_made() -> None:
    names = ("releases", "framework", "mlx", "server")
    ids = collected(*(f"tests/{name}" for name in names))
    folders = [id.split("/")[1] for id in ids]
    in_turn = [
        name for number, name in enumerate(folders) if folders[number - 1 : number] != [name]
    ]
    assert in_turn == ["server", "framework", "server", "releases", "mlx"]


def test_the_quick_tier_has_files_that_are_there_and_no_release() -> None:
    main = runpy.run_path(str(ROOT / "tests" / "__main__.py"))
    files = main["with_paths"](["quick"])
    assert files
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert {Path(file).parent.name for file in files} == {"framework"}
    assert main["takes"](["quick"]) == "less than a minute"
    assert main["with_paths"](["framework"]) == ["tests/framework"]
