"""What the runner keeps, holds between steps and takes at the peak, stock and patched.

    python3 tests/benchmarks/mlx/memory.py --release 0.5.23 --release 0.5.11

runs in the environments that the tests use, which the first use makes. It runs the small model of
sizes.py (8 layers, 4 KV heads of 64, float32) with the pool of stock's runner already in memory,
as after any prefix hit. It prints one line of JSON for each release, selection and load. Its
figures are beside the weights and the pool, whose own size at the load's end is given too.

What is held is the most that was in use after any prefill or chunk. The peak also has what is in
use within one, as MLX's attention on a CPU has, which makes all scores. `results/mlx.md` says
what was measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from sizes import MODELS

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]
_SLOTS = 16_384
_STEPS = 8


def main() -> int:
    """Measure here if sglang's runner is here, else in each release's environment."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", action="append", default=[])
    parser.add_argument("--patches", default="none:mlx", help="selections, with colons between")
    parser.add_argument("--radix", choices=("on", "off"), default="on")
    parser.add_argument("--only", default="", help="loads, with commas between")
    given = parser.parse_args()
    if os.environ.get("SGLANG_USE_MLX"):
        for selection in given.patches.split(":"):
            _measure(selection, given.radix == "on", given.only)
        return 0
    sys.path[:0] = [str(_ROOT / name) for name in ("src", "tests/harness")]
    import released

    worst = 0
    for release in given.release or ["0.5.23"]:
        print(json.dumps({"release": release}), flush=True)
        worst |= released.again(__file__, release)
    return worst


def _measure(selection: str, radix: bool, only: str) -> None:
    import mlx.core as mx
    import mlx_lm  # noqa: F401 -- before the stand-in for PyTorch, which transformers would take

    from tests.proof import standalone

    standalone.lend()

    import sglang_perf_patches
    from sglang_perf_patches.verify.mlx import models, rig

    sglang_perf_patches.activate(selection)
    loads: dict[str, Callable[[Any], dict[str, Any]]] = {
        "24 single requests": _singles,
        "the same with a shared prefix": _shared,
        "16 requests in batches of 4": _batches,
        "a prompt of 3328 tokens in chunks of 256": _chunks,
        "8 requests of 100 to 163 tokens": _eight,
    }
    with models.model("qwen3", "float32", **MODELS["small"]) as model:
        for name, load in loads.items():
            if only and not any(word in name for word in only.split(",")):
                continue
            player = rig.Player(model, radix=radix, slots=_SLOTS)
            player.keeps = False
            player.evaluate_pool()
            gc.collect()
            mx.clear_cache()
            weights = mx.get_active_memory() - player.bytes_of_pool()
            held = _Held(player, weights)
            mx.reset_peak_memory()
            began = time.perf_counter()
            figures = load(player)
            taken = time.perf_counter() - began
            gc.collect()
            beside = weights + player.bytes_of_pool()
            figures["kept MB"] = round((mx.get_active_memory() - beside) / 1e6, 1)
            figures["held MB"] = round(held.most / 1e6, 1)
            figures["peak MB"] = round((mx.get_peak_memory() - beside) / 1e6, 1)
            figures["pool MB"] = round(player.bytes_of_pool() / 1e6, 1)
            figures["seconds"] = round(taken, 2)
            print(json.dumps({"patches": selection, "load": name} | figures), flush=True)
            del player, held
    sglang_perf_patches.deactivate()


class _Held:
    """Note what is in use after each prefill and chunk, in bytes, and the most of it."""

    def __init__(self, player: Any, weights: int) -> None:
        self.most = 0
        self._weights, self._player = weights, player
        for name in ("join", "hit", "extend"):
            setattr(player, name, self._noted(getattr(player, name)))

    def _noted(self, take: Callable[..., None]) -> Callable[..., None]:
        import mlx.core as mx

        def noted(*arguments: Any) -> None:
            take(*arguments)
            beside = self._weights + self._player.bytes_of_pool()
            self.most = max(self.most, mx.get_active_memory() - beside)

        return noted


def _singles(player: Any) -> dict[str, Any]:
    """One request after the other, each with a prompt of its own."""
    times = []
    for number in range(24):
        player.join(f"r{number}", 64 + number)
        times.append(_decode(player, [f"r{number}"]))
        player.leave(f"r{number}")
    return _first_steps(times)


def _shared(player: Any) -> dict[str, Any]:
    """One request after the other, all but the first with a prefix of it from the pool."""
    player.join("r0", 64)
    _decode(player, ["r0"])
    player.leave("r0")
    times = []
    for number in range(1, 24):
        player.hit(f"r{number}", "r0", 48, 16 + number)
        times.append(_decode(player, [f"r{number}"]))
        player.leave(f"r{number}")
    return _first_steps(times)


def _batches(player: Any) -> dict[str, Any]:
    """Batches of four, each with prompts of their own."""
    times = []
    for start in range(0, 16, 4):
        names = [f"r{number}" for number in range(start, start + 4)]
        for number, name in enumerate(names):
            player.join(name, 40 + 8 * number)
        times.append(_decode(player, names))
        for name in names:
            player.leave(name)
    return _first_steps(times)


def _chunks(player: Any) -> dict[str, Any]:
    """A long prompt as the scheduler cuts it."""
    player.join("long", 256)
    for _ in range(12):
        player.extend("long", 256)
    return {}


def _eight(player: Any) -> dict[str, Any]:
    for number in range(8):
        player.join(f"r{number}", 100 + 9 * number)
    return {}


def _decode(player: Any, names: list[str]) -> list[tuple[float, float]]:
    """Milliseconds of each step: wall time, and time of the process, including MLX's threads."""
    import mlx.core as mx

    times = []
    for _ in range(_STEPS):
        mx.synchronize()
        began = time.perf_counter(), time.process_time()
        player.decode(names)
        mx.synchronize()
        ended = time.perf_counter(), time.process_time()
        times.append((1e3 * (ended[0] - began[0]), 1e3 * (ended[1] - began[1])))
    return times


def _first_steps(times: list[list[tuple[float, float]]]) -> dict[str, Any]:
    """The first step after the prefills, later ones, and their ratio, as quartiles."""
    figures: dict[str, Any] = {}
    for number, kind in enumerate(("", ", CPU time")):
        taken = [[step[number] for step in each] for each in times[1:]]  # the first warms MLX up
        laters = [statistics.median(each[2:]) for each in taken]
        figures[f"first step ms{kind}"] = _quartiles([each[0] for each in taken], 1)
        figures[f"later step ms{kind}"] = _quartiles(
            list(chain.from_iterable(e[2:] for e in taken)), 1
        )
        ratios = [each[0] / later for each, later in zip(taken, laters, strict=True)]
        figures[f"first : later{kind}"] = _quartiles(ratios, 2)
    return figures


def _quartiles(values: list[float], digits: int) -> list[float]:
    return [round(value, digits) for value in statistics.quantiles(values, n=4)]


if __name__ == "__main__":
    sys.exit(main())
