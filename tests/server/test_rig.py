"""The measurements' rig on a real Engine: MLX on this CPU, the set off and on by turns."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from linux_mlx.environments import sglang_environment, variables
from linux_mlx.server import write_model
from sglang_perf_patches.model import releases

ROOT = Path(__file__).parents[2]
RIG = ROOT / "tests" / "benchmarks" / "rig"
SHIMS = ROOT / "tests" / "harness" / "linux_mlx" / "shims"

pytestmark = pytest.mark.skipif("sys.platform != 'linux'", reason="the shims are for Linux")


def rig(tmp_path: Path, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = sglang_environment(releases.KNOWN[-1])
    python: list[str | Path] = [environment.python, "-W", "ignore"]
    settings = variables(
        PYTHONPATH=os.pathsep.join(map(str, (ROOT / "src", SHIMS))),
        SGLANG_USE_MLX="1",
        SGLANG_PERF_PATCHES="mlx",
        HF_HUB_OFFLINE="1",
        OMP_NUM_THREADS="1",
        TMPDIR=tmp_path,
        XDG_RUNTIME_DIR=tmp_path,
        **more,
    )
    return subprocess.run(
        [*python, "-m", "sglang_perf_patches", "run", *python, RIG / "turns.py", *words],
        env=settings,
        capture_output=True,
        text=True,
        timeout=900,
    )


def test_an_engine_shows_stock_and_ours_by_turns(tmp_path: Path) -> None:
    model = write_model(sglang_environment(releases.KNOWN[-1]), tmp_path)
    out = tmp_path / "out.json"
    done = rig(
        tmp_path,
        *(out, model, "all,-mlx.kv-arena", "together", "ttft", "tpot"),
        *("device=cpu", "max_total_tokens=16384"),
        ROUNDS="3",
        TOGETHER="3x20",
        CELLS="2x17",
        BATCHES="2",
        TOKENS="12",
        PROMPT="16",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(out.read_text(encoding="utf-8"))
    live = found["said"]["patches"]
    assert "mlx.kv-arena" in live
    assert found["off"] == {"stock": live, "all": [], "-mlx.kv-arena": ["mlx.kv-arena"]}
    same = {"stock": "3 of 3", "all": "3 of 3", "-mlx.kv-arena": "3 of 3"}
    assert {side: found["together"][side] for side in same} == same
    assert found["together"]["different tokens"] > 1
    for figures in (found["ttft"]["2x17"]["last"], found["tpot"]["2"]["per token"]):
        assert set(figures) == set(same)
        assert all(len(each["turns"]) == 3 for each in figures.values())
        assert figures["stock"]["ratio"] == [1, 1, 1]
    assert "mlx.kv-arena" in found["patches"]["ran"]
    assert found["patches"]["left out"] == []


def test_what_can_t_be_measured_is_bad_usage(tmp_path: Path) -> None:
    for words, says in (
        (("out.json", "no-such-shape", "all"), "no shape or model 'no-such-shape'"),
        (("out.json", "gdn-24", "all", "tofu"), "no part 'tofu'"),
    ):
        done = rig(tmp_path, *words)
        assert done.returncode == 2
        assert says in done.stderr
