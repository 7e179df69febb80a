"""What is installed: a wheel built from a copy of this checkout has the pages and fingerprints."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.maintain import ROOT

INTERPRETER = re.compile(r"triton\.runtime\.interpreter|GridExecutor|import (pytest|hypothesis)")
"""What only code of tests says: it runs kernels on a CPU, or is run by them."""


def test_a_wheel_has_every_page_and_every_fingerprint_and_no_test_code(tmp_path: Path) -> None:
    source, site = tmp_path / "source", tmp_path / "site"
    # setuptools leaves its build folder beside the source.
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
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
    package = ROOT / "src" / "sglang_perf_patches"
    data = [each for each in package.rglob("*.*") if not each.suffix.startswith(".py")]
    assert {each.suffix for each in data} == {".md", ".json", ".typed", ".xz"}
    for path in data:
        assert (site / path.relative_to(ROOT / "src")).read_bytes() == path.read_bytes(), path
