"""Lightning attention's waits, and what the host knows of the scheduler's batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import live, require
from sglang_perf_patches.verify.mamba.cases import Batch
from sglang_perf_patches.verify.mamba.harness import source_has
from sglang_perf_patches.verify.mamba.kinds import Lightning
from sglang_perf_patches.verify.mamba.lightning_rows import MODULE, PATCH, of_minimax, of_seg_la
from tests.proof.mamba.harness import Counted, alike, counted_gdn, noted
from tests.proof.mamba.scheduling import SCHEDULED


def seg_la(inputs: Inputs) -> int:
    """Forwards of the ``seg_la`` kernel wait for their metadata only."""
    scenarios = of_seg_la(inputs)
    return _forwards("seg_la", scenarios, own=0) if scenarios else 0


def _forwards(kernel: str, scenarios: Sequence[tuple[Batch, ...]], own: int) -> int:
    rig = Counted(Lightning(kernel))
    return alike(PATCH, rig.forwards, scenarios, most=waits_of_metadata(rig, own))


def waits_of_metadata(rig: Counted, own: int = 0) -> Callable[[Sequence[Batch]], int]:
    """How often forwards wait for their metadata on stock, and `own` times each for other things.

    Their layers need not wait.
    """
    fields = noted(rig.fields)
    return lambda batches: sum(len(fields(batch)[1]) + own for batch in batches)


def knowledge(_: Inputs) -> int:
    """What the host knows of the scheduler's batches, where layers track states."""
    if not source_has(MODULE, "mamba_track"):
        return 0
    with live(PATCH, ran=False):
        tracks = [counted_gdn().tracks(requests) for requests in SCHEDULED]
    known = all(mask == host and any(mask) for mask, host in tracks)
    require(known, f"{PATCH}: of the scheduler's batches the host knows {tracks}")
    return len(tracks)


CHECKS = {
    "seg_la": seg_la,
    # it waits once in each forward to learn the slots
    "minimax": lambda _: _forwards("minimax", of_minimax(), own=1),
    "what the host knows": knowledge,
}
