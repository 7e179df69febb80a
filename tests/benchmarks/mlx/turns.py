"""Time to the first token of each turn of a conversation, stock and with ``mlx.next-turn``.

    python3 tests/benchmarks/mlx/turns.py [--release 0.5.23] [--tokens 500] [--turns 8]

runs in the environment that the tests use, which the first use makes. It runs the proof's small
models, one with full attention and one with a sliding window of 128 tokens, with the radix cache
on, greedily. A prompt is all that was said before and the given number of new tokens; the reply has
8. Stock and patched take the same conversation in turn. It prints one line of JSON for each model:
milliseconds by turn. `results/mlx.md` says what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]
_REPLY = 8


def main() -> int:
    """Measure here if sglang's runner is here, else in the release's environment."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", default="0.5.23")
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    if os.environ.get("SGLANG_USE_MLX"):
        _measure(given)
        return 0
    sys.path[:0] = [str(_ROOT / name) for name in ("src", "tests/harness")]
    import released

    return released.again(__file__, given.release)


def _measure(given: argparse.Namespace) -> None:
    import mlx_lm  # noqa: F401 -- before the stand-in for PyTorch, which transformers would take

    from sglang_perf_patches.proof.mlx import models, standalone

    standalone.lend()
    for name, sizes in (("qwen3", {}), ("gpt_oss", {"sliding_window": 128})):
        with models.model(name, "float32", **sizes) as made:
            found: dict[str, list[list[float]]] = {"none": [], "mlx.next-turn": []}
            for number in range(given.rounds):
                for selection in sorted(found, reverse=bool(number % 2)):
                    found[selection].append(_conversation(made, selection, given))
            middle = {
                selection: [statistics.median(times) for times in zip(*rounds, strict=True)]
                for selection, rounds in found.items()
            }
            pairs = zip(middle["mlx.next-turn"], middle["none"], strict=True)
            line = {"model": name, "tokens a turn": given.tokens, "rounds": given.rounds}
            line |= {
                f"{selection}, ms": [round(t, 1) for t in ts] for selection, ts in middle.items()
            }
            line["patched : stock"] = [round(patched / stock, 2) for patched, stock in pairs]
            print(json.dumps(line), flush=True)


def _conversation(made: Any, selection: str, given: argparse.Namespace) -> list[float]:
    """Milliseconds to each turn's first token."""
    import sglang_perf_patches
    from sglang_perf_patches.proof.mlx import rig

    sglang_perf_patches.activate(selection, strict=True)
    player = rig.Player(made, radix=True, slots=2 * given.turns * (given.tokens + _REPLY))
    player.keeps = False
    times, held = [], 0
    for turn in range(given.turns):
        began = time.perf_counter()
        if turn:
            player.hit(f"t{turn}", f"t{turn - 1}", held, given.tokens)
        else:
            player.join("t0", given.tokens)
        times.append(1e3 * (time.perf_counter() - began))
        player.decode([f"t{turn}"], _REPLY)
        held += given.tokens + _REPLY
        player.leave(f"t{turn}")
    sglang_perf_patches.deactivate()
    return times


if __name__ == "__main__":
    sys.exit(main())
