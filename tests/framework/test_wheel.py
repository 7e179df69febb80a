"""What is installed: a wheel built from a copy of this checkout has the pages and fingerprints."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from sglang_perf_patches import sets
from sglang_perf_patches.cli.verbs import helping
from sglang_perf_patches.model.patch import by_id
from tests.maintain import ROOT, pages

SCRIPT = """
import json
import re
from sglang_perf_patches import sets
from sglang_perf_patches import patch_page
from sglang_perf_patches.cli.verbs import helping
from sglang_perf_patches.model.patch import by_id
print(json.dumps({
    "from": patch_page.FOLDER.as_posix(),
    "known": {each.name: len(each.known) for each in sets.load()},
    "topics": helping.topics(),
    "pages": {id: patch_page.path(id).read_text("utf-8") for id in by_id(sets.load())},
}))
"""


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
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(site)!r}){SCRIPT}"],
        capture_output=True,
        text=True,
        check=True,
    )
    contents = json.loads(done.stdout)
    assert Path(contents["from"]).is_relative_to(site)
    assert contents["known"] == {each.name: len(each.known) for each in sets.load()}
    assert contents["topics"] == helping.topics()
    assert contents["pages"] == {
        id: (ROOT / pages.file(id)).read_text("utf-8") for id in by_id(sets.load())
    }
