"""What happens when patches are taken off while they hold something; on a release's real runner."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import sglang_perf_patches as ours
from sglang_perf_patches.live import engine
from sglang_perf_patches.verify.mlx import cases, models, rig

# Requests of equal and unequal lengths; to be asked while they run, and after they have left.
RUNNING: tuple[cases.Step, ...] = (("join", "a", 9), ("join", "b", 12), ("decode", "ab", 4))
GOING_ON: tuple[cases.Step, ...] = (
    ("decode", "ba", 3),
    ("decode", "ab"),
    ("leave", "a"),
    ("leave", "b"),
)
AFTERWARDS: tuple[cases.Step, ...] = (
    ("join", "c", 12),
    ("join", "d", 9),
    ("decode", "cd", 3),
    ("leave", "c"),
    ("leave", "d"),
)
HITS: tuple[cases.Step, ...] = (
    ("hit", "e", "a", 8, 5),
    ("hit", "f", "b", 14, 2),
    ("chain", "ef", 3),
)


def postponed_write() -> dict[str, Any]:
    """``mlx.pool-write`` is to go between a prompt's forward pass and its write into the pool."""
    schedule = [("join", "a", 40), ("decode", "a", 2), ("leave", "a"), ("hit", "b", "a", 30, 5)]
    results: dict[str, Any] = {"asked": []}
    with models.model("qwen3", "float32") as model:
        for selection in ("none", "mlx.pool-write"):
            ours.activate(selection, strict=True)
            player = rig.Player(model, radix=True)

            def finalize(pending: Any, player: rig.Player = player) -> int:
                del player.runner.prefill_finalize
                results["asked"].append(asked())
                return int(player.runner.prefill_finalize(pending))

            if selection != "none":
                player.runner.prefill_finalize = finalize
            # In two parts, for the second of which it must be gone.
            played = [asdict(player.play(schedule[:1], ends=False))]
            results["afterwards"] = gone()
            played.append(asdict(player.play(schedule[1:])))
            results[selection] = played
            ours.deactivate()
    return results


def running_requests() -> dict[str, Any]:
    """``mlx.kv-arena`` holds rows of running requests: what it says, and what they get."""
    with models.model("qwen3", "float32") as model:
        return {what: _in_parts(model, what) for what in ("none", "mlx.kv-arena")}


def _in_parts(made: Any, selection: str) -> dict[str, Any]:
    player = rig.Player(made, radix=True)
    ours.activate(selection, strict=True)
    results: dict[str, Any] = {"played": [asdict(player.play(RUNNING, ends=False))]}
    if selection != "none":
        results["asked"] = asked()
    results["played"].append(asdict(player.play(GOING_ON, ends=False)))
    results["afterwards"] = gone()
    results["played"].append(asdict(player.play(AFTERWARDS + HITS)))
    ours.deactivate()
    return results


def asked() -> str:
    ours.deactivate()
    engine.look_again()
    return _states()


def gone() -> str:
    engine.look_again()
    return _states()


def _states() -> str:
    report = engine.report()
    if report is None:
        return ""
    return "; ".join(f"{each.id} {each.reason}" for each in report.patches if each.state == "live")
