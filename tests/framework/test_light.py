"""What a process imports for the plugin: nothing that it does not need there and then."""

import json
import os

import pytest
from throwaway import Throwaway

from sglang_perf_patches import downloads
from tests.proof import OF_RUNNER

LOADED = """
import json, sys
before = set(sys.modules)
{script}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
WRAPT = "wrapt, asyncio"
"""Loaded before: wrapt brings networking of its own, as asyncio, which every server has, does."""

NETWORK = {"http", "urllib.request", "ftplib", "smtplib", "xmlrpc", "requests", "pip", "ensurepip"}
PACKAGING = {"pip", "zipfile", "zipimport", "importlib.metadata", "importlib.resources", "shutil"}
OURS_FOR_OTHERS = {"cli", "verify", "bench_server", "worker"}


def loaded(throwaway: Throwaway, script: str, **variables: str | None) -> set[str]:
    done = throwaway.run(LOADED.format(script=script), **variables)
    return set(json.loads(done.stdout.splitlines()[-1]))


def ours(names: set[str]) -> set[str]:
    return {
        name.removeprefix("sglang_perf_patches.") for name in names if name.startswith("sglang_")
    }


def below(names: set[str], of: set[str]) -> set[str]:
    """The modules that are one of these, or inside one."""
    return {name for name in names if any(name == top or name.startswith(f"{top}.") for top in of)}


@pytest.mark.parametrize("selection", ["none", "", " none "])
def test_off_loads_only_the_switch_and_the_queue(throwaway: Throwaway, selection: str) -> None:
    script = "from sglang_perf_patches import plugin; plugin.load()"
    names = loaded(throwaway, script, SGLANG_PERF_PATCHES=selection)
    queue = {"live", "live.executor", "live.threads"}  # in which calls of a signal handler wait
    assert ours(names) == {"sglang_perf_patches", "plugin", "model", "model.switch", *queue}
    others = {"wrapt", "sglang", "torch", "mlx"}
    assert not names & {"dataclasses", "inspect", "logging", "pathlib", *others}


def search(throwaway: Throwaway) -> str:
    """PYTHONPATH with a release in place of the throwaway one."""
    places = throwaway.environment()["PYTHONPATH"].split(os.pathsep)[1:]
    return os.pathsep.join([str(downloads.tree("0.5.23")), *places])


@pytest.mark.parametrize("selection", ["all", "mlx"])
def test_a_server_loads_nothing_that_others_need(throwaway: Throwaway, selection: str) -> None:
    script = f"import {WRAPT}; before |= set(sys.modules)\n"
    script += "from sglang_perf_patches import plugin; plugin.load()\n"
    script += "import sglang_perf_patches; report = sglang_perf_patches.activate()\n"
    script += "assert 'pending' in {state.state for state in report.patches}"
    names = loaded(throwaway, script, PYTHONPATH=search(throwaway), SGLANG_PERF_PATCHES=selection)
    assert not below(names, NETWORK | PACKAGING)
    assert not below(ours(names), OURS_FOR_OTHERS)
    assert "live.engine" in ours(names)
    assert "compat.parsing" not in ours(names)
    assert not (throwaway.site.parent / "cache").exists()  # nothing is kept of what it read


def test_what_is_not_chosen_is_not_judged(throwaway: Throwaway) -> None:
    script = """
from sglang_perf_patches.compat import source
looked = []
first = source.Tree.definition
def definition(self, reference):
    looked.append(reference)
    return first(self, reference)
source.Tree.definition = definition
from sglang_perf_patches import plugin; plugin.load()
files = {name.partition(":")[0] for name in looked}
assert files and all("mlx" in name or "model_runner" in name for name in files), files
"""
    loaded(throwaway, script, PYTHONPATH=search(throwaway), SGLANG_PERF_PATCHES=OF_RUNNER)
