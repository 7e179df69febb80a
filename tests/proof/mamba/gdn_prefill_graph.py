"""Replays of captured prefills give what stock's give, in buckets of all sizes."""

from __future__ import annotations

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import some
from tests.proof.mamba import flashinfer
from tests.proof.mamba.alike import alike
from tests.proof.mamba.captured import BREAKS, EDGES, Captured, draw_replays
from tests.proof.mamba.play import gdn

PATCH = "mamba.gdn-prefill-graph"

REPLAYS = 1
"""Drawn replays: each takes up to a minute of Triton's interpreter."""


def replays(inputs: Inputs) -> int:
    """The whole prefill in one graph, with no wait of its own."""
    wanted = [*some(inputs, EDGES), *inputs(draw_replays, REPLAYS)]
    return alike((PATCH,), Captured(gdn()).replayed, wanted)


def replays_with_breaks(inputs: Inputs) -> int:
    """The graph breaks at the kernel's call."""
    counted = Captured(gdn(), flashinfer.kernel(gdn().counter)).counted
    return alike((PATCH,), counted, some(inputs, BREAKS), most=None)


CHECKS = {"replays": replays, "replays with breaks": replays_with_breaks}
