"""Steps that fail in the middle of the model have no effect, as in stock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from unittest.mock import Mock

from sglang_perf_patches.verify.comparing import live, require_same
from sglang_perf_patches.verify.mlx import models
from sglang_perf_patches.verify.mlx.cases import Step, schedule
from sglang_perf_patches.verify.mlx.rig import Player

FAILING = schedule(
    """
    join a 9, join b 12, decode ab, decode ab, fail ab 1, decode ab, fail ab 2, leave a, join c
    5, decode bc
    """
)
"""Steps of a stable batch; those of ``fail`` name a layer in which they fail."""


def after_failures(patch: str, dtype: str, schedule: Sequence[Step] = FAILING) -> int:
    """A patched run with failing steps, against stock without those steps."""
    with models.model("qwen3", dtype) as model:
        expected = asdict(Player(model).play([step for step in schedule if step[0] != "fail"]))
        with live(patch):
            actual = asdict(_Failing(model).play(schedule))
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
