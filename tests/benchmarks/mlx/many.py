"""What the MLX runner holds after thousands of requests: does memory grow?

    python3 tests/benchmarks/mlx/many.py --release 0.5.23 --selection mlx,mlx.length-groups

runs in the environment that the tests use, which the first use makes. Up to eight requests of a
small model run at a time, with the radix cache on; most are short, one in ten has up to 900
tokens, and one in three begins with what another one has left in the pool. They join, decode a few
tokens and leave, in drawn order. After each tenth of them it prints one line of JSON: what MLX has
in use when nothing runs, the pool apart, and the process's resident memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from pathlib import Path
from random import Random
from typing import Any

from beside_release import run

_AT_ONCE = 8


def main() -> int:
    """Measure here if sglang's runner is here, else in the release's environment."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", default="0.5.23")
    parser.add_argument("--selection", default="mlx,mlx.length-groups")
    parser.add_argument("--requests", type=int, default=10_000)
    given = parser.parse_args()
    return run(__file__, given.release, lambda: _measure(given))


def _measure(given: argparse.Namespace) -> None:
    from tests.proof import standalone

    standalone.lend()
    import sglang_perf_patches
    from sglang_perf_patches.verify.mlx import models, rig

    sglang_perf_patches.activate(given.selection)
    chance = Random(1)
    with models.model("qwen3", "float32") as model:
        player = rig.Player(model, radix=True)
        player.keeps = False
        player.evaluate_pool()
        served = 0
        while served < given.requests:
            _wave(player, chance, served)
            served += _AT_ONCE
            if served % (given.requests // 10) < _AT_ONCE:
                print(json.dumps({"requests": served, **_held(player)}), flush=True)
    report = sglang_perf_patches.activate(given.selection)
    ran = [patch.id for patch in report.patches if patch.ran]
    print(json.dumps({"selection": given.selection, "ran": ran}))


def _wave(player: Any, chance: Random, served: int) -> None:
    """Eight requests that join in turn, decode together and leave in another order."""
    running: list[str] = []
    for number in range(_AT_ONCE):
        name = f"r{served + number}"
        donor = f"r{served + number - _AT_ONCE}"
        if served and chance.random() < 1 / 3:
            player.hit(donor=donor, who=name, prefix=2, further=chance.randint(1, 9))
        else:
            longest = 900 if chance.random() < 0.1 else 40
            player.join(name, chance.randint(1, longest))
        running.append(name)
        player.decode(list(running), 1)
    player.decode(list(running), chance.randint(1, 6), chained=True)
    chance.shuffle(running)
    while running:
        player.leave(running.pop())
        if len(running) > 1 and chance.random() < 0.5:
            player.decode(list(running), 1)
    player.pending.clear()
    for donor in [name for name in player._donated if int(name[1:]) < served]:
        del player._donated[donor]  # the player keeps what left; the runner does not


def _held(player: Any) -> dict[str, float]:
    import mlx.core as mx

    mx.synchronize()
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "in use MB": round((mx.get_active_memory() - player.bytes_of_pool()) / 1e6, 2),
        "resident MB": round(resident / 1e6, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
