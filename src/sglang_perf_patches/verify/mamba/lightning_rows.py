"""Lightning-attention forwards equal stock's, and no layer waits to learn what is tracked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .. import Inputs
from ..comparing import some
from . import harness
from .cases import FORWARDS, PREFIX, Batch
from .harness import Play, alike, prefills
from .kinds import Lightning

PATCH = "mamba.lightning-rows"
MODULE = "linear.lightning_backend"

FEW = (PREFIX, FORWARDS["none"], FORWARDS["no mask"])


def seg_la(inputs: Inputs) -> int:
    """Forwards of the ``seg_la`` kernel; without tracking, the patch changes nothing."""
    further = some(inputs, (FORWARDS["half"], FORWARDS["chunks"]))
    scenarios = prefills(MODULE, *FEW, *further)
    return _forwards("seg_la", scenarios, own=0) if len(scenarios) > 1 else 0


def minimax(_: Inputs) -> int:
    """Forwards of the ``minimax`` kernel, each of which waits once to learn the slots."""
    return _forwards("minimax", prefills(MODULE, *FEW), own=1)


def _forwards(kernel: str, scenarios: Sequence[tuple[Batch, ...]], own: int) -> int:
    rig = harness.of(Lightning(kernel))
    return alike((PATCH,), rig.forwards, scenarios, most=waits_of_metadata(rig, own))


def waits_of_metadata(rig: Play, own: int = 0) -> Callable[[Sequence[Batch]], int]:
    """How often forwards wait for their metadata on stock, and `own` times each for other things.

    Their layers need not wait.
    """
    return lambda batches: sum(len(rig.fields(batch)[1]) + own for batch in batches)


CHECKS = {"seg_la": seg_la, "minimax": minimax}
