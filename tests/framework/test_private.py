"""A folder that the environment names and that is another user's, as after ``sudo``."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from sglang_perf_patches.telemetry import records


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder away")
def test_another_users_runtime_folder_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, temporary = tmp_path / "runtime", tmp_path / "temporary"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert records.folder_to_write() == runtime / "sglang-perf-patches"
    os.chown(runtime, 12345, 12345)
    assert records.folder_to_write() == temporary / f"sglang-perf-patches-{os.getuid()}"
    assert next(records.folders_to_read()) == records.folder_to_write()
