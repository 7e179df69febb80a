"""CPU time of a batched decode step, stock against patched, interleaved in one process.

    python3 tests/benchmarks/mlx/bench_step.py mlx.kv-arena --release 0.5.23

runs in the environment that the tests use, which the first use makes. It prints one line of JSON
for each batch: the nodes of a step's graph, and the ratio stock : patched with its quartiles. Every
second pair of steps is taken in the other order. `results/mlx.md` says what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[3]
_PAUSING = _ROOT / "tests" / "benchmarks" / "rig" / "injected"
_WARM_UP = 3
_SHORTEST, _LONGEST, _EQUAL = 16, 256, 128


def main() -> int:
    """Measure here if sglang is here, else in the release's environment."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("patch")
    parser.add_argument("--release", default="0.5.23")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=30)
    given = parser.parse_args()
    if os.environ.get("SGLANG_USE_MLX"):
        _measure(given)
        return 0
    sys.path.insert(0, str(_ROOT / "tests" / "harness"))
    from linux_mlx.environments import sglang_environment, variables

    shims = _ROOT / "tests" / "harness" / "linux_mlx" / "shims"
    search = os.pathsep.join(map(str, [_ROOT / "src", shims, _ROOT / "tests" / "mlx"]))
    settings = {"PYTHONPATH": search, "SGLANG_USE_MLX": "1", "OMP_NUM_THREADS": "1"}
    python = sglang_environment(given.release).python
    return subprocess.run([python, __file__, *sys.argv[1:]], env=variables(**settings)).returncode


def _measure(given: argparse.Namespace) -> None:
    from sglang_perf_patches.verify.mlx import models, rig

    sizes = {
        "num_hidden_layers": given.layers,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
    }
    _live(given.patch)
    with models.model("qwen3", "float32", **sizes) as model:
        for batch in (4, 16):
            for lengths in ("equal", "skewed"):
                player = rig.Player(model)
                names = [f"r{number}" for number in range(batch)]
                for number, name in enumerate(names):
                    spread = (_LONGEST - _SHORTEST) * number // (batch - 1)
                    player.join(name, _EQUAL if lengths == "equal" else _SHORTEST + spread)
                about = {"patch": given.patch, "batch": batch, "lengths": lengths}
                print(json.dumps(about | _compare(given, player, names)), flush=True)


def _compare(given: argparse.Namespace, player: Any, names: list[str]) -> dict[str, Any]:
    from graphs import primitives

    nodes: dict[str, int] = {}
    seconds: dict[str, list[float]] = {"stock": [], "patched": []}
    for view in seconds:
        with _shown(given.patch, view):
            nodes[view] = sum(primitives(player, names).values())
    for pair in range(_WARM_UP + given.pairs):
        for view in sorted(seconds, reverse=bool(pair % 2)):
            with _shown(given.patch, view):
                taken = _step(player, names)
            if pair >= _WARM_UP:
                seconds[view].append(taken)
    ratios = [a / b for a, b in zip(seconds["stock"], seconds["patched"], strict=True)]
    return {
        "nodes": nodes,
        "stock ms": round(1e3 * statistics.median(seconds["stock"]), 2),
        "ratio quartiles": [round(ratio, 3) for ratio in statistics.quantiles(ratios, n=4)],
    }


def _live(patch: str) -> None:
    """Have the patch on, for the step that it leaves to stock's code."""
    from importlib import import_module

    import sglang_perf_patches
    from sglang_perf_patches.sets.mlx.references import WRAPPER

    import_module(WRAPPER)
    sglang_perf_patches.activate(patch, strict=True)
    if patch == "mlx.kv-arena":
        import_module("sglang_perf_patches.sets.mlx.kv_arena.body")._begin = lambda *_: None


def _shown(patch: str, view: str) -> AbstractContextManager[object]:
    """The block runs with stock's code, or with ours."""
    sys.path.append(str(_PAUSING))
    from pausing import paused  # type: ignore[import-not-found]

    return paused(patch) if view == "stock" else nullcontext()


def _step(player: Any, names: list[str]) -> float:
    import mlx.core as mx

    start = time.process_time()
    pending = player.runner.decode_batch_start(names)
    mx.eval(pending.lazy_tokens)
    player.runner.decode_batch_finalize(pending)
    taken = time.process_time() - start
    player.pending.clear()
    return taken


if __name__ == "__main__":
    sys.exit(main())
