"""Forwards, metadata and the scheduler's own batches are stock's; no layer asks the mask.

A decode is stock's own, with its waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import require, same, some
from sglang_perf_patches.verify.mamba.cases import EDGES, METADATA, PREFIX, Batch, Request, draw
from sglang_perf_patches.verify.mamba.cases import FORWARDS as PREFILLS
from tests.proof.mamba.harness import UNKNOWN, alike, counted_gdn, noted
from tests.proof.mamba.scheduling import SCHEDULED

PATCH = "mamba.zero-sync"


def _step(*requests: tuple[int, bool]) -> tuple[Batch, ...]:
    """A decode, of each request its tokens before it and whether its state is tracked."""
    return (Batch(tuple(Request(1, *request) for request in requests), mode="DECODE"),)


FORWARDS: dict[str, tuple[Batch, ...]] = {
    "prefix": PREFIX,
    "decode": _step((63, True), (20, False), (127, True)),
    **PREFILLS,
    "all": (Batch((Request(66),)),),
    "decode, none": _step((63, False), (20, False)),
}
"""Scenarios of whole forwards. What shows most for its time comes first."""


def draw_decode(random: Random) -> Batch:
    count = random.randint(1, 9)
    return Batch(
        tuple(
            Request(1, random.randint(1, 300), tracked=random.randint(0, 3) == 0)
            for _ in range(count)
        ),
        mode="DECODE",
    )


def waits_as_upstream(batches: Sequence[Batch]) -> int:
    """As many as stock's of 0.5.11, which asks the mask once: see tests/mamba/test_mamba.py."""
    return 14 * len(batches)


def forwards(inputs: Inputs) -> int:
    """Outputs and states; those of decodes with stock's own code."""
    drawn = some(inputs, [*FORWARDS.values()])
    extends = [batches for batches in drawn if batches[0].mode != "DECODE"]
    steps = [batches for batches in drawn if batches[0].mode == "DECODE"]
    count = alike(PATCH, counted_gdn().forwards, extends, most=waits_as_upstream)
    return count + same(PATCH, noted(counted_gdn().forwards), steps, ran=False)


def metadata(inputs: Inputs) -> int:
    """Drawn batches, tracked and not."""
    batches = [*EDGES, *inputs(draw, METADATA)]
    steps = [FORWARDS["decode"][0], *inputs(draw_decode, METADATA // 4)]
    tracked = sum(any(request.tracked for request in batch.requests) for batch in batches)
    both = len(batches) / 6 < tracked < len(batches)
    require(both, f"{tracked} of {len(batches)} drawn batches are tracked")
    count = same(PATCH, counted_gdn().metadata, batches)
    return count + same(PATCH, noted(counted_gdn().metadata), steps, ran=False)


CHECKS = {
    "forwards": forwards,
    "metadata": metadata,
    "unknown batches": lambda _: alike(PATCH, counted_gdn().changed, UNKNOWN, most=None),
    "the scheduler's batches": lambda _: same(PATCH, counted_gdn().scheduled, SCHEDULED),
}
