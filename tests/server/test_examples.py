"""The shell examples: their commands work on the release that they are for, up to the server's own.

A server needs a model and mostly a GPU, so each is asked for its help: that goes through the
patches, `run`, and sglang's parsing of the arguments that the example gives.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from linux_mlx.environments import install_checkout, sglang_environment, variables

EXAMPLES = Path(__file__).parents[2] / "examples"
SHIMS = EXAMPLES / "linux_mlx" / "shims"


def example(release: str, *command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = sglang_environment(release)
    install_checkout(environment)
    path = f"{environment.python.parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command,
        env=variables(PATH=path, PYTHONPATH=SHIMS, **more),
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("script", "release", "chosen"),
    [
        ("pinned_release.sh", "0.5.10.post1", "mamba.track-mask"),
        ("pd_decode_swa.sh", "0.5.23", "swa.evict-before-retract"),
        ("eagle_mla.sh", "0.5.23", "mla.verify-mask-fill"),
        ("mlx_on_a_mac.sh", "0.5.23", "mlx.kv-arena"),
    ],
)
def test_a_launcher(script: str, release: str, chosen: str) -> None:
    done = example(release, EXAMPLES / script, "--help")
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split() for line in done.stdout.splitlines()]
    listed = {row[1]: row[2:4] for row in rows if row[1:] and row[1].startswith(f"{row[0]}.")}
    assert listed[chosen] == ["applies", "on"]
    assert "--model-path" in done.stdout


def test_what_a_mac_gives_is_in_one_file(tmp_path: Path) -> None:
    file = tmp_path / "found.txt"
    done = example(
        "0.5.23",
        EXAMPLES / "mlx_on_a_mac.sh",
        FILE=str(file),
        VERIFY="mlx.last-row",
        BENCH="--quick --rounds 2 --prefill 16 --context 16 --lengths equal --taken chained",
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith(f"All of this is in {file}: please send it to us.\n")
    found = file.read_text(encoding="utf-8")
    assert found.count("it ended with 0\n") == 2
    assert "sglang 0.5.23\n" in found
    assert "a prefill of one request" in found
    assert "a decode step of 4 requests" in found


def test_the_gate_lets_a_good_upgrade_through_and_stops_a_bad_one() -> None:
    good = example("0.5.11", EXAMPLES / "upgrade_gate.sh", "0.5.23")
    assert good.returncode == 0, good.stderr
    assert "mlx.cache-growth" in good.stdout
    bad = example("0.5.11", EXAMPLES / "upgrade_gate.sh", "0.5.8", SGLANG_PERF_PATCHES="mla")
    assert bad.returncode == 1, bad.stderr
    assert "lost, and chosen: mla.draft-metadata" in bad.stdout
    absent = example("0.5.11", EXAMPLES / "upgrade_gate.sh", "0.5.9", SGLANG_PERF_PATCHES="mlx")
    assert absent.returncode == 0, absent.stderr  # the code that is slow is not there
    unknown = example("0.5.11", EXAMPLES / "upgrade_gate.sh", "0.5.999")
    assert unknown.returncode == 2


def test_the_line_of_the_dockerfile_ends_in_a_command_of_ours() -> None:
    lines = (EXAMPLES / "Dockerfile").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith("RUN "))
    install, _, command = line.removeprefix("RUN ").partition(" && ")
    assert install == "pip install --no-cache-dir sglang-perf-patches"
    assert example("0.5.23", *command.split()).returncode == 0
