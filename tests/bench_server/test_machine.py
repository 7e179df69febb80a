"""What ``bench server`` reports of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sglang_perf_patches.bench_server import machine


@pytest.mark.parametrize(
    ("script", "name", "used"),
    [
        ('[ "$1" = --query-gpu=name ] && echo H200 && echo L4 || printf "2\\n3\\n"', "H200, L4", 5),
        ("echo '[N/A]'", "[N/A]", 0),
        ("echo 1; exit 9", "", 0),
        ("exec sleep 60", "", 0),
    ],
)
def test_a_tool_that_fails_or_hangs_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, name: str, used: int
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(machine, "_LIMIT_S", 2)
    assert machine.facts()["gpu"] == name
    assert machine.gpu_bytes() == used * 1024 * 1024
