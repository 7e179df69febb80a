"""What running requests hold in memory between two decode steps, and what a step takes.

The sides are stock, patched, and mlx-lm.

    python3 tests/benchmarks/mlx/footprint.py --release 0.5.23

runs in the environment that the tests use, which the first use makes. Each load's requests are
prefilled and decoded, in stock's runner, in the patched one and in mlx-lm's own batches, on a small
model (8 layers, 2 KV heads of 32, float32). It prints one line of JSON for each load and side: what
is in use beside the weights, how much of it is the pool of the radix cache, and what the requests'
tokens themselves take; and the time of one of the steps that follow, the processor's and the
clock's, with quartiles. ``--shape 0.6b`` takes Qwen3-0.6B's sizes, for a GPU. ``--unread`` leaves
stock's pool as it is before the first prefix hit, where MLX has not evaluated it. `results/mlx.md`
says what was measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from beside_release import run
from sizes import MODELS

_SIZES = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
_STEPS = 6
_TIMED = 24
_LOADS = {
    "1_x_250": [250],
    "16_x_250": [250] * 16,
    "2000_down_to_125": [2000 - 125 * number for number in range(16)],
    "1_x_4000_and_15_x_100": [4000] + [100] * 15,
    "1_x_8100_and_15_x_100": [8100] + [100] * 15,
}


def main() -> int:
    """Measure here if sglang's runner is here, else in the release's environment."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", default="0.5.23")
    parser.add_argument("--sides", default="none:mlx:mlx-lm", help="selections, or mlx-lm")
    parser.add_argument("--loads", default=":".join(_LOADS), help="with colons between")
    parser.add_argument("--slots", type=int, default=32_768, help="of the pool, in tokens")
    parser.add_argument("--unread", action="store_true")
    parser.add_argument("--shape", default="", help="a model of sizes.py, in bfloat16")
    given = parser.parse_args()
    return run(__file__, given.release, lambda: _measure(given))


def _measure(given: argparse.Namespace) -> None:
    import mlx.core as mx
    import mlx_lm  # noqa: F401 -- before the stand-in for PyTorch, which transformers would take

    from tests.proof import standalone

    standalone.lend()
    import sglang_perf_patches
    from sglang_perf_patches.verify.mlx import models

    sizes = MODELS[given.shape] if given.shape else _SIZES
    dtype = "bfloat16" if given.shape else "float32"
    per_token = 2 * sizes["num_hidden_layers"] * sizes["num_key_value_heads"] * sizes["head_dim"]
    per_token *= 2 if given.shape else 4
    for side in given.sides.split(":"):
        if side != "mlx-lm":
            sglang_perf_patches.activate(side)
        for load in given.loads.split(":"):
            with models.model("qwen3", dtype, **sizes) as model:
                mx.eval(model.model.parameters())
                gc.collect()
                before = mx.get_active_memory()
                lengths = _LOADS[load]
                pool, tokens, steps = (
                    _by_mlx_lm(model, lengths)
                    if side == "mlx-lm"
                    else _by_runner(model, lengths, given.slots, is_read=not given.unread)
                )
                told = {
                    "side": side,
                    "load": load,
                    "in use MB": round((tokens - before) / 1e6, 1),
                    "of it the pool MB": round(pool / 1e6, 1),
                    "physical MB": round(sum(lengths) * per_token / 1e6, 1),
                } | {
                    f"step, {clock} ms": [
                        round(1e3 * each, 1) for each in statistics.quantiles(times, n=4)
                    ]
                    for clock, times in zip(
                        ("processor", "wall"), zip(*steps, strict=True), strict=True
                    )
                }
                print(json.dumps(told), flush=True)
        if side != "mlx-lm":
            gc.collect()
            sglang_perf_patches.deactivate()


def _by_runner(
    made: Any, lengths: list[int], slots: int, *, is_read: bool
) -> tuple[int, int, list[tuple[float, float]]]:
    """After a few decode steps of all requests: bytes of the pool's buffers, what is in use.

    Then the seconds of each of some steps, the processor's and the clock's.
    """
    from sglang_perf_patches.verify.mlx import rig

    player = rig.Player(made, radix=True, slots=slots)
    player.keeps = False
    if is_read:
        player.evaluate_pool()
    names = [f"r{number}" for number in range(len(lengths))]
    for name, length in zip(names, lengths, strict=True):
        player.join(name, length)
    player.decode(names, _STEPS, chained=True)
    pool, used = player.bytes_of_pool() if is_read else 0, _in_use()
    return pool, used, [_seconds(partial(player.decode, names)) for _ in range(_TIMED)]


def _by_mlx_lm(made: Any, lengths: list[int]) -> tuple[int, int, list[tuple[float, float]]]:
    """The same of mlx-lm's batch, which has no pool."""
    from random import Random

    from mlx_lm.generate import BatchGenerator

    chance = Random(1)
    generator = BatchGenerator(made.model, max_tokens=1000)
    generator.insert(
        [[chance.randrange(made.vocabulary) for _ in range(length)] for length in lengths]
    )
    decoded: dict[int, int] = {}
    while len(decoded) < len(lengths) or min(decoded.values()) < _STEPS:
        for response in generator.next_generated():
            decoded[response.uid] = decoded.get(response.uid, 0) + 1
    used = _in_use()
    steps = [_seconds(generator.next_generated) for _ in range(_TIMED)]
    generator.close()
    return 0, used, steps


def _seconds(step: Callable[[], object]) -> tuple[float, float]:
    """The processor's and the clock's, for a step and what it has queued."""
    import mlx.core as mx

    used, began = time.process_time(), time.perf_counter()
    step()
    mx.synchronize()
    return time.process_time() - used, time.perf_counter() - began


def _in_use() -> int:
    import mlx.core as mx

    mx.synchronize()
    gc.collect()
    mx.synchronize()
    return int(mx.get_active_memory())


if __name__ == "__main__":
    sys.exit(main())
