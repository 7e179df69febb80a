"""The processor's time of prompts and of steps: stock's runner, the patched one, and mlx-lm.

    python3 tests/benchmarks/mlx/shares.py [--release 0.5.23] [--requests 16] [--tokens 192]

runs in the environment that the tests use, which the first use makes. By turns each side takes the
same number of prompts of the same length and decodes 32 tokens of each together, on the tiny model
of the served benchmark. It prints one line of JSON for each: milliseconds of the processor for a
token of a reply. `results/mlx.md` says what was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from beside_release import run

_SIZES = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
_STEPS = 32


def main() -> int:
    """Measure here if sglang's runner is here, else in the release's environment."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", default="0.5.23")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=192, help="of a prompt")
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    return run(__file__, given.release, lambda: _measure(given))


def _measure(given: argparse.Namespace) -> None:
    import mlx_lm  # noqa: F401 -- before the stand-in for PyTorch, which transformers would take

    from tests.proof import standalone

    standalone.lend()
    import sglang_perf_patches
    from sglang_perf_patches.verify.mlx import models

    with models.model("qwen3", "float32", **_SIZES) as model:
        for turn in range(given.turns):
            for side in ("none", "mlx", "mlx-lm"):
                if side == "mlx":
                    sglang_perf_patches.activate(side, strict=True)
                times = (_by_mlx_lm if side == "mlx-lm" else _by_runner)(model, given)
                if side == "mlx":
                    sglang_perf_patches.deactivate()
                each = [round(1e3 * spent / (given.requests * _STEPS), 2) for spent in times]
                told = {"turn": turn, "side": side, "prompts, ms a token": each[0]}
                print(json.dumps(told | {"steps, ms a token": each[1]}), flush=True)


def _by_runner(made: Any, given: argparse.Namespace) -> tuple[float, float]:
    """Seconds of the processor for all prompts, and for all steps."""
    import mlx.core as mx

    from sglang_perf_patches.verify.mlx import rig

    player = rig.Player(made, radix=True, slots=given.requests * (given.tokens + 2 * _STEPS))
    player.keeps = False
    names = [f"r{number}" for number in range(given.requests)]
    began = time.process_time()
    for name in names:
        player.join(name, given.tokens)
    prompts = time.process_time()
    player.decode(names, _STEPS, chained=True)
    mx.synchronize()
    ended = time.process_time()
    for name in names:  # a patch stays while it holds requests
        player.leave(name)
    return prompts - began, ended - prompts


def _by_mlx_lm(made: Any, given: argparse.Namespace) -> tuple[float, float]:
    """The same; its first token of all ends the prompts."""
    from random import Random

    from mlx_lm.generate import BatchGenerator

    chance = Random(1)
    generator = BatchGenerator(made.model, max_tokens=_STEPS)
    began = prompts = time.process_time()
    words = range(given.tokens)
    generator.insert([[chance.randrange(512) for _ in words] for _ in range(given.requests)])
    begun: set[int] = set()
    ended: set[int] = set()
    while len(ended) < given.requests:
        for response in generator.next_generated():
            begun.add(response.uid)
            if response.finish_reason:
                ended.add(response.uid)
        if len(begun) < given.requests:
            prompts = time.process_time()
    taken = time.process_time()
    generator.close()
    return prompts - began, taken - prompts


if __name__ == "__main__":
    sys.exit(main())
