"""The folders of this user."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from sglang_perf_patches.model import private
from sglang_perf_patches.telemetry import records


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder away")
def test_another_users_runtime_folder_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after ``sudo``, which may keep the environment."""
    runtime, temporary = tmp_path / "runtime", tmp_path / "temporary"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert records.folder_to_write() == runtime / "sglang-perf-patches"
    os.chown(runtime, 12345, 12345)
    assert records.folder_to_write() == temporary / f"sglang-perf-patches-{os.getuid()}"
    assert next(records.folders_to_read()) == records.folder_to_write()


def test_a_user_without_a_home_has_no_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lacking)
    with pytest.raises(OSError, match="home directory"):
        private.cache()


def test_a_relative_cache_folder_is_none_as_the_convention_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert private.cache() == Path.home() / ".cache" / "sglang-perf-patches"
