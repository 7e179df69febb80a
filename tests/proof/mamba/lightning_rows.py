"""What the host knows of the scheduler's batches, where lightning-attention layers track states."""

from __future__ import annotations

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import live, require
from sglang_perf_patches.verify.mamba.harness import source_has
from sglang_perf_patches.verify.mamba.lightning_rows import MODULE, PATCH
from tests.proof.mamba.harness import counted_gdn
from tests.proof.mamba.scheduling import SCHEDULED


def knowledge(_: Inputs) -> int:
    """What the host knows of the scheduler's batches, where layers track states."""
    if not source_has(MODULE, "mamba_track"):
        return 0
    with live(PATCH, ran=False):
        tracks = [counted_gdn().tracks(requests) for requests in SCHEDULED]
    known = all(mask == host and any(mask) for mask, host in tracks)
    require(known, f"{PATCH}: of the scheduler's batches the host knows {tracks}")
    return len(tracks)


CHECKS = {"what the host knows": knowledge}
