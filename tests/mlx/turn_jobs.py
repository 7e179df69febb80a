"""What `mlx.next-turn` keeps of a conversation."""

import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import job_tools  # noqa: F401 -- lends what stands in for sglang
import mlx.core as mx

import sglang_perf_patches
from sglang_perf_patches.live import engine
from sglang_perf_patches.sets.mlx.next_turn import body as next_turn
from sglang_perf_patches.verify.mlx import cases, models, rig


def whose_turn() -> dict[str, Any]:
    """How many turns prompts with the same tokens continue, by what the radix cache has of them."""
    turn = cases.schedule("join a 200, decode a 2, leave a")
    again = (*turn, *cases.schedule("hit b a 200 20"))
    results: dict[str, Any] = {}
    with models.model("gpt_oss", "float32") as model:
        sglang_perf_patches.activate("mlx.next-turn, mlx.first-buffer", strict=True)

        def continued(schedule: Sequence[Any], change: Any = None) -> int:
            next_turn.COUNTS.clear()
            player = rig.Player(model, radix=True)
            player.play(schedule[:-1], ends=False)
            if change is not None:
                change(player)
            player.play(schedule[-1:])
            return next_turn.COUNTS["continued"]

        def elsewhere(player: Any) -> None:
            tokens, slots = player._donated["a"]
            player._donated["a"] = tokens, [slot - 300 for slot in slots]

        def flushed(player: Any) -> None:
            before = _active_memory()
            player._pool.clear()
            results["freed by a flush"] = before - _active_memory()

        results["same prefix in the radix cache"] = continued(again)
        results["not in the radix cache"] = continued(
            (*turn, ("decode", "c")),
            lambda player: player._prefill("c", player._donated["a"][0], []),
        )
        results["in other slots"] = continued(again, elsewhere)
        results["after a flush"] = continued(again, flushed)
        for shared in (1, 11):
            other = f"join a 12, decode a 2, leave a, hit o a {shared} 30"
            both = f"{other}, hit b a 13 20"
            results[f"of another with {shared} tokens"] = continued(cases.schedule(other))
            results[f"next to one with {shared} tokens"] = continued(cases.schedule(both))

        # How stock marks a request that has ended, before it removes the request.
        def ended(player: Any) -> None:
            held = player._held.pop("a")
            player._donated["a"] = player.tokens("a")[:held], player._pool.slots("a", 0, held)
            player.runner.release_request_row("a", held)

        steps = (("join", "x", 9), *turn[:-1], again[-1])
        results["ended, and not removed yet"] = continued(steps, ended)
        player = rig.Player(model, radix=True)
        player.play(steps[:-1], ends=False)
        ended(player)
        player.play(steps[-1:], ends=False)
        results["running after that"] = sorted(player.runner._req_caches)
        player.runner.remove_request("a")  # as stock does at the next step
        player.decode(["x", "b"], 2)
        player = rig.Player(model, radix=True)
        player.play(turn, ends=False)
        before = _active_memory()
        sglang_perf_patches.deactivate()
        results["off with a turn kept"] = engine.report() is None
        results["freed when taken off"] = before - _active_memory()
        player._pool.clear()
        results["of stock when taken off"] = "clear" not in vars(player._pool)
    return results


def give_windows() -> None:
    """Make the tiny model of a server, whose folder a variable names, one with sliding windows."""
    tests = Path(__file__).parents[1]
    sys.path += [str(tests / "benchmarks" / "mlx"), str(tests / "harness")]
    from served import _with_windows

    folder = Path(os.environ["FOLDER"])
    weights = _with_windows(folder)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})


def kept_turns() -> dict[str, int]:
    """Bytes that kept turns hold after a batch has ended, and those that they count."""
    sizes: list[int] = []

    class Turns(next_turn._Turns):
        def keep(self, *words: Any) -> bool:
            kept = super().keep(*words)
            sizes[:] = [turn.size for turn in self._kept]
            return kept

    names = "abcdefgh"
    with models.model("gpt_oss", "float32") as model, mock.patch.object(next_turn, "_Turns", Turns):
        sglang_perf_patches.activate("mlx,mlx.next-turn", strict=True)
        gc.collect()
        before = _active_memory()
        player = rig.Player(model, radix=True)
        for number, name in enumerate(names):
            player.join(name, 200 + number)
        for number, name in enumerate(names):
            player.decode(list(names[number:]), 3)
            player.leave(name)
        player.pending.clear()
        results = {"held": _active_memory() - before, "turns": len(sizes), "counted": sum(sizes)}
        del player
        gc.collect()
        sglang_perf_patches.deactivate()
    return results


def _active_memory() -> int:
    gc.collect()
    return int(mx.get_active_memory())
