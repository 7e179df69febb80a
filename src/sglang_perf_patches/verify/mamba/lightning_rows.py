"""Lightning-attention forwards equal stock's, and no layer waits to learn what is tracked."""

from __future__ import annotations

from .. import Inputs
from ..comparing import same, some
from .cases import FORWARDS, PREFIX, Batch
from .harness import Play, prefills
from .rig import Lightning

PATCH = "mamba.lightning-rows"
MODULE = "linear.lightning_backend"


def of_seg_la(inputs: Inputs) -> list[tuple[Batch, ...]]:
    """Forwards of the ``seg_la`` kernel; without tracking, the patch changes nothing."""
    further = some(inputs, (FORWARDS["half"], FORWARDS["chunks"]))
    scenarios = [*of_minimax(), *prefills(MODULE, *further)]
    return scenarios if len(scenarios) > 1 else []


def of_minimax() -> list[tuple[Batch, ...]]:
    """Forwards of the ``minimax`` kernel."""
    return prefills(MODULE, PREFIX, FORWARDS["none"], FORWARDS["no mask"])


def seg_la(inputs: Inputs) -> int:
    """With the ``seg_la`` kernel."""
    scenarios = of_seg_la(inputs)
    return same(PATCH, Play(Lightning("seg_la")).forwards, scenarios) if scenarios else 0


CHECKS = {
    "seg_la": seg_la,
    "minimax": lambda _: same(PATCH, Play(Lightning("minimax")).forwards, of_minimax()),
}
