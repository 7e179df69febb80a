"""Time to the first token of each turn of a conversation, stock and with ``mlx.next-turn``.

    python3 tests/benchmarks/mlx/turns.py [--release 0.5.23] [--tokens 500] [--turns 8]

runs in the environment that the tests use, which the first use makes. It runs the proof's small
models, one with full attention and one with a sliding window of 128 tokens, with the radix cache
on, greedily. A prompt is all that was said before and the given number of new tokens; the reply
has 8, or ``--reply``. With ``--dropped`` the next prompt has other tokens in a reply's place, as
where a chat's template leaves out what a model has thought: gpt-oss' does. Stock and patched take
the same conversation in turn. It prints one line of JSON for each model: milliseconds by turn, of
the wall and of the processor. `results/mlx.md` says what was measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from beside_release import run

_HERE = Path(__file__).parent
_SIZES = {"qwen3": {}, "gpt_oss": {"sliding_window": 128}}


def main() -> int:
    """Measure here if sglang's runner is here, else in the release's environment."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", default="0.5.23")
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--reply", type=int, default=8, help="tokens of a reply")
    parser.add_argument("--dropped", action="store_true")
    parser.add_argument("--models", default=",".join(_SIZES))
    given = parser.parse_args()
    return run(__file__, given.release, lambda: _measure(given))


def _measure(given: argparse.Namespace) -> None:
    import mlx_lm  # noqa: F401 -- before the stand-in for PyTorch, which transformers would take

    from sglang_perf_patches.verify.mlx import models
    from tests.proof import standalone

    standalone.lend()
    for name in given.models.split(","):
        with models.model(name, "float32", **_SIZES[name]) as model:
            times: dict[str, list[list[tuple[float, float]]]] = {"none": [], "mlx.next-turn": []}
            for number in range(given.rounds):
                for selection in sorted(times, reverse=bool(number % 2)):
                    times[selection].append(_conversation(model, selection, given))
            line: dict[str, Any] = {"model": name, "tokens a turn": given.tokens}
            line |= {"reply": given.reply, "dropped": given.dropped, "rounds": given.rounds}
            for which, clock in enumerate(("ms", "ms of the processor")):
                middle = {
                    selection: [
                        statistics.median(each[which] for each in of)
                        for of in zip(*rounds, strict=True)
                    ]
                    for selection, rounds in times.items()
                }
                pairs = zip(middle["mlx.next-turn"], middle["none"], strict=True)
                line |= {f"{side}, {clock}": [round(t, 1) for t in middle[side]] for side in middle}
                line[f"patched : stock, {clock}"] = [round(ours / its, 2) for ours, its in pairs]
            print(json.dumps(line), flush=True)


def _conversation(
    made: Any, selection: str, given: argparse.Namespace
) -> list[tuple[float, float]]:
    """Milliseconds to each turn's first token, of the wall and of the processor."""
    import sglang_perf_patches
    from sglang_perf_patches.verify.mlx import rig

    sglang_perf_patches.activate(selection, strict=True)
    slots = 2 * given.turns * (given.tokens + given.reply)
    player = rig.Player(made, radix=True, slots=slots)
    player.keeps = False
    times, held = [], 0
    for turn in range(given.turns):
        began = time.perf_counter(), time.process_time()
        if turn:
            player.hit(f"t{turn}", f"t{turn - 1}", held, given.tokens)
        else:
            player.join("t0", given.tokens)
        ended = time.perf_counter(), time.process_time()
        times.append((1e3 * (ended[0] - began[0]), 1e3 * (ended[1] - began[1])))
        player.decode([f"t{turn}"], given.reply)
        held += given.tokens + (0 if given.dropped else given.reply)
        player.leave(f"t{turn}")
    sglang_perf_patches.deactivate()
    return times


if __name__ == "__main__":
    sys.exit(main())
