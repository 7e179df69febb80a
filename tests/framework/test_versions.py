"""As installed: the oldest and the newest wrapt, each Python, and what is in the wheel."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from throwaway import REPOSITORY, Throwaway, plugins

from linux_mlx.environments import copy_checkout
from linux_mlx.patience import limit_s
from sglang_perf_patches import downloads, sets
from sglang_perf_patches.compat import source, verdict

MAIN_PATH = """
import sys
from throwaway_patches import *
use(STEP, HELPER, BOTH)
from sglang.srt.plugins import load_plugins
load_plugins()                                  # ours and another plugin that wraps a method
import sglang.srt.a as a, sglang.srt.b as b
import sglang_perf_patches as ours
report = ours.activate()
assert {s.state for s in report.patches} == {"live"}, report
assert "their-plugin" in report.of("one.step").reason, report
assert a.Worker().step(1) == 1 + 1 + 100 + 100 + 7 and b.use(3) == 1006
ours.deactivate()
assert a.Worker().step(1) == 2 + 7 and b.use(3) == 6

from sglang_perf_patches import sets
from sglang_perf_patches.compat import source, verdict
import importlib, json, wrapt
importlib.reload(sets)
words = {}
for tree in sys.argv[1:]:
    judged = verdict.judge_each(sets.load(), source.at(tree))
    words = {v.patch.id: [v.word, v.reason] for v in judged}
print(json.dumps({"wrapt": wrapt.__version__, "words": words}))
"""

THEIR_PLUGIN = """
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
def load():
    HookRegistry.register(
        "sglang.srt.a.Worker.step", lambda original, self, x: original(self, x) + 7, HookType.AROUND
    )
"""


def main_path(
    throwaway: Throwaway, python: str, wrapt: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    """The framework's path through a process that loads plugins, in a Python of its own."""
    throwaway.lend_plugin_loader("0.5.23")
    distributions = plugins(throwaway.site.parent, THEIR_PLUGIN)
    places = [wrapt, *distributions, throwaway.site, REPOSITORY / "src"]
    script = throwaway.put("main_path.py", MAIN_PATH)
    return throwaway.execute(python, script, *words, PYTHONPATH=os.pathsep.join(map(str, places)))


def install_wrapt(python: str, requirement: str, folder: Path) -> Path:
    quietly = ("--quiet", "--disable-pip-version-check", "--no-warn-script-location")
    command = [python, "-m", "pip", "install", *quietly, "--target", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s())
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("bound", ["oldest", "newest"])
def test_the_oldest_and_the_newest_wrapt(throwaway: Throwaway, tmp_path: Path, bound: str) -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()
    ((allowed, oldest),) = re.findall(r'"(wrapt>=([^,]+),[^"]*)"', text)
    requirement = f"wrapt=={oldest}.*" if bound == "oldest" else allowed
    done = main_path(
        throwaway, sys.executable, install_wrapt(sys.executable, requirement, tmp_path / "wrapt")
    )
    assert done.returncode == 0, done.stderr
    version = json.loads(done.stdout)["wrapt"]
    assert version.startswith(f"{oldest}.") == (bound == "oldest")


def interpreter(version: str) -> str | None:
    """A Python of that version, from the search path or from pyenv."""
    kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, kept)):
        if candidate:
            asked = [candidate, "-c", "import sys, pip; print('%d.%d' % sys.version_info[:2])"]
            done = subprocess.run(asked, capture_output=True, text=True)
            if done.returncode == 0 and done.stdout.strip() == version:
                return candidate
    return None


@pytest.mark.parametrize(
    "version",
    [
        "3.10",
        *(pytest.param(each, marks=pytest.mark.whole_matrix) for each in ("3.11", "3.12")),
        "3.13",
    ],
)
def test_every_python(throwaway: Throwaway, tmp_path: Path, version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} with pip on this machine")
    tree = str(downloads.tree("0.5.23"))
    wrapt = install_wrapt(python, "wrapt>=1.16,<3", tmp_path / "wrapt")
    done = main_path(throwaway, python, wrapt, tree)
    assert done.returncode == 0, done.stderr
    judged = verdict.judge_each(sets.load(), source.at(tree))
    here = {one.patch.id: [one.word, one.reason] for one in judged}
    assert json.loads(done.stdout)["words"] == here


INTERPRETER = re.compile(r"triton\.runtime\.interpreter|GridExecutor|import (pytest|hypothesis)")
"""What only code of tests says: it runs kernels on a CPU, or is run by them."""


def test_a_wheel_has_every_page_and_every_fingerprint_and_no_test_code(tmp_path: Path) -> None:
    source, site = copy_checkout(tmp_path / "source"), tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--wheel-dir", tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        names = archive.namelist()
    assert any(name.endswith("/verify/runner.py") for name in names)
    test_code = re.compile(r"(^|/)(tests?|proofs?|conftest|lent|tape|waits|triton_names)(/|\.py$)")
    assert not [name for name in names if test_code.search(name)]
    for path in site.rglob("*.py"):
        assert not INTERPRETER.search(path.read_text("utf-8")), path
    package = REPOSITORY / "src" / "sglang_perf_patches"
    files = [each for each in package.rglob("*.*") if each.suffix != ".pyc"]
    assert {each.suffix for each in files} == {".md", ".json", ".typed", ".xz", ".py"}
    for path in files:
        assert (site / path.relative_to(REPOSITORY / "src")).read_bytes() == path.read_bytes(), path
