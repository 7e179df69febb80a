"""Where a step fails, buffers end or tokens are sampled, arenas leave everything as stock does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from unittest.mock import Mock

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import live, require_same, some
from sglang_perf_patches.verify.mlx import cases, models
from sglang_perf_patches.verify.mlx.cases import Step
from sglang_perf_patches.verify.mlx.equivalence import FEW
from sglang_perf_patches.verify.mlx.kv_arena import PATCH, SCRIPTED, hitting, same_steps
from sglang_perf_patches.verify.mlx.models import Model
from sglang_perf_patches.verify.mlx.rig import Player


def after_failures(patch: str, first: int, last: int) -> int:
    """Steps that fail in the middle of the model have no effect, as in stock.

    Stock plays the others only. ``fail`` names the layer in which a step of a stable batch fails,
    and the prompts of the first and the last request have so many tokens.
    """
    steps = cases.schedule(
        f"""
        join a {first}, join b 12, decode ab, decode ab, fail ab 1, decode ab, fail ab 2, leave a,
        join c {last}, decode bc, decode cb
        """
    )
    with models.model("qwen3", "float32") as model:
        expected = asdict(Player(model).play([step for step in steps if step[0] != "fail"]))
        with live(patch):
            actual = asdict(_Failing(model).play(steps))
    require_same(f"{patch}, after a step that failed", expected, actual)
    return 1


class _Failure(Exception):
    """Raised by a failing step."""


class _Failing(Player):
    def fail(self, batch: str, layer: int) -> None:
        """Run a step in which one layer's output projection raises."""
        attention = self._model.model.layers[layer].self_attn
        attention = getattr(attention, "_inner", attention)
        projection = attention.o_proj
        attention.o_proj = Mock(side_effect=_Failure)
        try:
            self.runner.decode_batch(list(batch))
        except _Failure:
            self.pending.clear()
        else:
            raise RuntimeError("the step did not fail")
        finally:
            attention.o_proj = projection


def sampled(inputs: Inputs) -> int:
    with models.model("qwen3", "float32") as model:
        return same_steps(model, some(inputs, SCRIPTED), sampling=True)


def pool_of_another_dtype(inputs: Inputs) -> int:
    """Requests that start from its KV have that dtype too, and so do those with their buffers."""
    with models.model("qwen3", "bfloat16", quantized=True) as model:
        return same_steps(model, hitting(inputs)[: 1 + FEW], radix=True)


def ends_of_buffers(inputs: Inputs) -> int:
    """Buffers that end at once, patched, against wide ones in stock: its own attribute sets it."""
    schedules = [cases.SCRIPTED, cases.SETTLING, *inputs(cases.random_schedule)]
    with models.model("qwen3", "float32") as model:
        wide = [_with_buffers(model, 1024, schedule) for schedule in schedules]
        with live(PATCH):
            grown = [_with_buffers(model, 8, schedule) for schedule in schedules]
    require_same(f"{PATCH}, where buffers end", wide, grown)
    return len(schedules)


def _with_buffers(model: Model, tokens: int, schedule: Sequence[Step]) -> dict[str, Any]:
    player = Player(model)
    player.runner._max_seq_len = tokens
    return asdict(player.play(schedule))


CHECKS = {
    "failing steps": lambda _: after_failures(PATCH, 9, 5),
    "sampled": sampled,
    "a pool of another dtype": pool_of_another_dtype,
    "ends of buffers": ends_of_buffers,
}
