"""Whose a package is: as the standard library says it, in a fraction of its time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from sglang_perf_patches.live import wrappers


def put(folder: Path, name: str, **texts: str) -> None:
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    for file, text in texts.items():
        (about / file.replace("__", ".")).write_text(text)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    put(tmp_path, "declares", top_level__txt="declared\nalso_declared\n", RECORD="other/a.py,,\n")
    put(tmp_path, "lists", RECORD='listed/__init__.py,,1\n"listed/a,b.py",,\nlisted-1.0/x,,\n')
    put(tmp_path, "modules", RECORD="single.py,,\nsingle2.py,,\n__pycache__/single.pyc,,\n")
    put(tmp_path, "second", RECORD="declared/x.py,,\nlisted/y.py,,\n")
    put(tmp_path, "says-nothing")
    plugin = "[sglang.srt.plugins]\nmine = editable.plugin:load\n"
    put(tmp_path, "installed-editable", entry_points__txt=plugin, RECORD="__editable__.py,,\n")
    return tmp_path


def test_packages_have_the_distribution_that_the_standard_library_finds(site: Path) -> None:
    known = metadata.packages_distributions()
    for package in ("declared", "also_declared", "listed", "single", "single2", "wrapt", "pytest"):
        if package in known:  # up to Python 3.10 it knows only what is declared
            assert wrappers.distribution(package) == known[package][0], package
    for package in ("other", "listed-1", "no_such_package", "sing", "METADATA"):
        assert wrappers.distribution(package) is None, package
    assert wrappers.distribution("listed") == "lists"
    assert wrappers.distribution("editable") == "installed-editable"


def test_what_cannot_be_read_is_nobody_s(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "lists-1.0.dist-info" / "RECORD").write_bytes(b"\xff\xfe")
    assert wrappers.distribution("listed") == "second"
    monkeypatch.setattr(metadata, "distributions", lambda **_: 1 / 0)
    assert wrappers.distribution("another") is None


def test_hundreds_of_distributions_are_no_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        files = "".join(f"pack{number}/part{file}/mod.py,sha256=abc,10\n" for file in range(400))
        put(tmp_path, f"dist{number}", RECORD=files)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    whole = cpu_seconds(metadata.packages_distributions)
    first = cpu_seconds(lambda: wrappers.distribution("pack299"))
    assert first < whole / 5, (first, whole)
    assert cpu_seconds(lambda: [wrappers.distribution("pack299") for _ in range(100)]) < first / 5
    assert wrappers.distribution("of_nobody") is None


def cpu_seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began
