"""Attention is told the same of windows, and computes the same, whoever counts their slots."""

from __future__ import annotations

from ....proof import Inputs
from ....proof.comparing import same
from ....proof.swa.pools import publish
from ....proof.swa.window_batches import EDGES, drawn, play

PATCH = "swa.window-metadata"


def batches(inputs: Inputs) -> int:
    """Batches one after the other: offsets, slots, all of a graph's buffer, and outputs."""
    publish()
    return same(PATCH, play, [*EDGES, *inputs(drawn)])


CHECKS = {"batches": batches}
