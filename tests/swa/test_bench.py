"""``bench swa`` on one release, in the environment of the swa tests."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from linux_mlx.environments import variables
from sglang_perf_patches import releases

_HERE = Path(__file__).parent


def run(cpu_python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = [_HERE / "shims", releases.tree("0.5.23"), _HERE.parents[1] / "src", _HERE]
    return subprocess.run(
        [cpu_python, "-m", "sglang_perf_patches", "bench", "swa", *arguments],
        env=variables(PYTHONPATH=os.pathsep.join(map(str, path)), OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
    )


def test_bench_compares_stock_and_patched(cpu_python: Path) -> None:
    done = run(cpu_python, "--json", "--quick")
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert result["sglang"] == "0.5.23"
    assert result["unbound_equal"]
    rows = [row for row in result["rows"] if row["kind"] == "admission"]
    unpaged = {row["prompt"]: row for row in rows if row["page_size"] == 1}
    assert [unpaged[n]["stock"]["admitted"] for n in sorted(unpaged)] == [7, 1, 0]
    assert [unpaged[n]["patched"]["admitted"] for n in sorted(unpaged)] == [64, 31, 7]
    for row in rows:
        assert row["patched"]["admitted"] <= row["bound"]
    (decoding,) = (row for row in result["rows"] if row["kind"] == "decoding")
    assert decoding["patched"]["finished"] == 64
    assert decoding["with policies"]["retractions"] < decoding["patched"]["retractions"]
