"""The time of one prompt's prefill at Qwen3-0.6B's shape on a CPU, stock and patched in turn.

    python3 tests/benchmarks/mlx/prefill.py --release 0.5.23

The model has one of its 28 layers and a 28th of its vocabulary, so that body, attention and head
keep the whole model's proportions. On a CPU its MLX multiplies at about one GFLOP/s, so all of it
would take half an hour for a prompt. The script prints one line of JSON for each pair, then one
with quartiles of the ratios, in CPU time of the process and in wall time. `results/mlx.md` says
what was measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from contextlib import closing
from typing import Any

from beside_release import run
from sizes import MODELS

_LAYERS = 28


def main() -> int:
    """Measure here if sglang's runner is here, else in the release's environment."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", default="0.5.23")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()
    return run(__file__, given.release, lambda: _measure(given.tokens, given.pairs, given.dtype))


def _measure(tokens: int, pairs: int, dtype: str) -> None:
    import mlx_lm  # noqa: F401 -- before the stand-in for PyTorch, which transformers would take

    from tests.proof import standalone

    standalone.lend()

    from switch import Switch

    from sglang_perf_patches.verify.mlx import models, rig

    sizes = dict(MODELS["0.6b"])
    sizes |= {"num_hidden_layers": 1, "vocab_size": sizes["vocab_size"] // _LAYERS}
    with models.model("qwen3", dtype, **sizes) as model, closing(Switch()) as switch:
        sides = {"stock": switch.stock, "patched": switch.live}
        players: dict[str, Any] = {}
        for name, live in sides.items():
            with live():
                players[name] = rig.Player(model, radix=True, slots=4 * tokens)
                players[name].evaluate_pool()
                players[name].join("warm", 32)
                players[name].leave("warm")
                players[name].pending.clear()
        ratios: list[tuple[float, float]] = []
        for number in range(pairs):
            taken: dict[str, tuple[float, float]] = {}
            digests = []
            for name in list(sides)[:: 1 if number % 2 else -1]:
                with sides[name]():
                    taken[name] = _prefill(players[name], f"p{number}", tokens)
                digests += [rig.digest(logits) for logits in players[name].pending]
                players[name].pending.clear()
            (cpu, wall), (stock_cpu, stock_wall) = taken["patched"], taken["stock"]
            ratios.append((cpu / stock_cpu, wall / stock_wall))
            pair = {name: [round(s, 2) for s in each] for name, each in taken.items()}
            pair_ratio = [round(each, 3) for each in ratios[-1]]
            print(
                json.dumps(
                    {"s, CPU and wall": pair, "patched : stock": pair_ratio}
                    | {"logits": "equal" if digests[0] == digests[1] else "different"}
                ),
                flush=True,
            )
        for kind, of in zip(("CPU time", "wall time"), zip(*ratios, strict=True), strict=True):
            quartiles = [round(each, 3) for each in statistics.quantiles(of, n=4)]
            print(json.dumps({f"patched : stock, {kind}": quartiles}), flush=True)


def _prefill(player: Any, name: str, tokens: int) -> tuple[float, float]:
    """Seconds of CPU time and of wall time until the prompt's token is there."""
    import mlx.core as mx

    mx.synchronize()
    began = time.process_time(), time.perf_counter()
    player.join(name, tokens)
    taken = time.process_time() - began[0], time.perf_counter() - began[1]
    player.leave(name)
    mx.synchronize()
    return taken


if __name__ == "__main__":
    sys.exit(main())
