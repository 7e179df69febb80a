"""Numbers as ``bench server`` writes them, and what it says of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sglang_perf_patches.bench_server import machine
from sglang_perf_patches.bench_server.shown import number


def test_numbers_have_no_exponent_and_three_digits() -> None:
    assert [number(value) for value in (1234.5, 0.01234, 12.345, 0.0, 7)] == [
        *("1234", "0.0123", "12.3", "0", "7.00")
    ]


def test_the_machine_is_named() -> None:
    facts = machine.facts()
    assert facts["system"]
    assert facts["processor"]
    assert facts["python"].startswith("3.")


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo NVIDIA H200; echo NVIDIA L4", ["NVIDIA H200", "NVIDIA L4"]),
        ("echo 1; exit 9", []),
        ("exec sleep 60", []),
    ],
)
def test_a_tool_that_fails_or_hangs_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, found: list[str]
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(machine, "_LIMIT_S", 0.5)
    assert machine.smi("name") == found
    assert machine.facts().get("gpu", "") == ", ".join(found)
    for process in machine._abandoned:
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    machine._abandoned.clear()
