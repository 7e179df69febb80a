"""`tests.maintain.new` makes the room of a patch, in a copy of this checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_perf_patches import sets
from sglang_perf_patches.cli import page
from tests.maintain import ROOT, pages

SETS = Path("src/sglang_perf_patches/sets")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("src", "tests/maintain"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def new(copy: Path, name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.maintain.new", name], cwd=copy, capture_output=True, text=True
    )


@pytest.mark.parametrize("name", sets.NAMES)
def test_the_room_of_a_new_patch(copy: Path, name: str) -> None:
    done = new(copy, f"{name}.some-thing")
    assert (done.returncode, done.stderr) == (0, "")
    room = SETS / name / "some_thing"
    files = [str(room / each) for each in ("__init__.py", "body.py", "README.md")]
    files += [f"tests/proof/{name}/some_thing.py", str(SETS / name / "__init__.py")]
    assert done.stdout.splitlines()[:5] == files
    files.remove(str(room / "README.md"))
    ruff = [sys.executable, "-m", "ruff"]
    for command in ([*ruff, "check", *files], [*ruff, "format", "--check", *files]):
        checked = subprocess.run(command, cwd=copy, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout
    script = (
        "import sys; sys.path.insert(0, 'src')\n"
        "from sglang_perf_patches import sets\n"
        f"found = next(each for each in sets.load() if each.name == {name!r})\n"
        "print(found.patches[-1].id, found.patches[-1].variants)\n"
    )
    loaded = subprocess.run(
        [sys.executable, "-I", "-c", script], cwd=copy, capture_output=True, text=True
    )
    assert loaded.stdout.strip() == f"{name}.some-thing ()", loaded.stderr
    parsed = page.parse((copy / room / "README.md").read_text(encoding="utf-8"))
    assert {parsed.condition, parsed.why, parsed.how, parsed.gain, parsed.cost} == {pages.TO_WRITE}
    again = new(copy, f"{name}.some-thing")
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == f"new: {name}.some-thing is taken\n"


@pytest.mark.parametrize(
    ("name", "because"),
    [
        ("other.thing", "unknown set 'other'"),
        ("swa", "'' is no name of a patch"),
        ("swa.Thing", "'Thing' is no name of a patch"),
        ("swa.window", "window is taken in swa"),
        ("mamba.layer-views", "mamba.layer-views is taken"),
    ],
)
def test_what_is_no_new_name_is_refused(copy: Path, name: str, because: str) -> None:
    before = sorted(
        path.name for path in (copy / SETS).rglob("*") if "__pycache__" not in str(path)
    )
    done = new(copy, name)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"new: {because}")
    after = sorted(path.name for path in (copy / SETS).rglob("*") if "__pycache__" not in str(path))
    assert after == before
