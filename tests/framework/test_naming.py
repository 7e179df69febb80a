"""Whose a foreign object is, as messages name it."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from sglang_perf_patches.live import wrappers


def test_a_plugin_has_the_name_of_its_distribution_also_if_it_is_editable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "installed_editable-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[sglang.srt.plugins]\nmine = theirs.plugin:load\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert wrappers.plugin_with("theirs") == "their-plugin"
    assert wrappers.plugin_with("pytest") is None
    monkeypatch.setattr(metadata, "entry_points", lambda **_: 1 / 0)
    assert wrappers.plugin_with("unread") is None


def test_what_is_no_plugin_is_named_by_its_file() -> None:
    namespace: dict[str, object] = {"__name__": "somebody"}
    exec(compile("def theirs(): pass", "/their/file.py", "exec"), namespace)
    assert wrappers.describe(namespace["theirs"]) == "somebody.theirs of /their/file.py"
