"""Lightning attention's waits, and what the host knows of the scheduler's batches."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import live, require
from sglang_perf_patches.verify.mamba.cases import Batch
from sglang_perf_patches.verify.mamba.lightning_rows import PATCH, of_minimax, of_seg_la
from sglang_perf_patches.verify.mamba.rig import Lightning
from sglang_perf_patches.verify.stock import takes
from tests.proof.mamba.harness import Counted, alike, counted_gdn, noted
from tests.proof.mamba.scheduling import SCHEDULED


def seg_la(inputs: Inputs) -> int:
    """Forwards of the ``seg_la`` kernel wait for their metadata, and before 0.5.21 for the mask."""
    scenarios = of_seg_la(inputs)
    return _forwards("seg_la", scenarios, own=int(not has_lists())) if scenarios else 0


def has_lists() -> bool:
    """Whether the release's batches have lists of what they track."""
    info = importlib.import_module("sglang.srt.model_executor.forward_batch_info")
    return takes(info.ForwardBatch, "mamba_prefill_track_mask_cpu")


def _forwards(kernel: str, scenarios: Sequence[tuple[Batch, ...]], own: int) -> int:
    rig = Counted(Lightning(kernel))
    return alike(PATCH, rig.forwards, scenarios, most=waits_of_metadata(rig, own))


def waits_of_metadata(rig: Counted, own: int = 0) -> Callable[[Sequence[Batch]], int]:
    """How often forwards wait: for metadata, as on stock, and `own` times; not in each layer."""
    fields = noted(rig.fields)
    return lambda batches: sum(len(fields(batch)[1]) + own for batch in batches)


def knowledge(_: Inputs) -> int:
    """What the host knows of the scheduler's batches, where layers track states."""
    if not has_lists():
        return 0
    with live(PATCH, ran=False):
        tracks = [counted_gdn().tracks(requests) for requests in SCHEDULED]
    known = all(mask == host and any(mask) for mask, host in tracks)
    require(known, f"{PATCH}: of the scheduler's batches the host knows {tracks}")
    return len(tracks)


CHECKS = {
    "seg_la": seg_la,
    # it waits once in each forward to learn the slots, and once for the mask
    "minimax": lambda _: _forwards("minimax", of_minimax(), own=2),
    "what the host knows": knowledge,
}
