"""The metadata and the forwards of Mamba2 layers equal stock's, without stock's waits."""

from __future__ import annotations

import importlib
from itertools import accumulate
from typing import Any

import torch

from .. import Inputs
from ..stock import called
from . import harness
from .cases import EDGES, FORWARDS, METADATA, PREFIX, Batch, draw
from .harness import Played, alike, gdn
from .kinds import Mamba2

PATCH = "mamba.mamba2-chunk-indices"


def metadata(inputs: Inputs) -> int:
    """Drawn batches, each with tracking and without."""
    tracked = [*EDGES, *inputs(draw, METADATA)]
    batches = [*tracked, *(Batch(batch.requests, tracking=False) for batch in tracked)]
    return alike((PATCH,), mixed, batches)


def forwards(_: Inputs) -> int:
    """Outputs and states."""
    scenarios = harness.prefills("mamba.mamba", PREFIX, FORWARDS["no mask"])[:1]
    run = harness.of(Mamba2()).forwards
    return alike((PATCH,), run, scenarios, most=None)


def mixed(wanted: Batch) -> Played:
    """Mamba2's metadata, made of a gated delta net's batch."""
    return mixed_of(wanted, gdn().batch(wanted))


def mixed_of(wanted: Batch, batch: Any) -> Played:
    """As `mixed`, of a batch that is there."""
    module = importlib.import_module(harness.METADATA)
    device = gdn().rig.device
    lens = [request.new for request in wanted.requests]
    start = torch.tensor([0, *accumulate(lens)], dtype=torch.int32, device=device)
    slots = torch.arange(len(lens), dtype=torch.int32, device=device)
    gdn().own(start, slots)
    forward = called(module.ForwardMetadata, query_start_loc=start, mamba_cache_indices=slots)
    chunk = 16 if len(lens) % 2 else 256  # shorter than a request, or longer than all
    with gdn().counting() as waits:
        prepared = module.Mamba2Metadata.prepare_mixed(forward, chunk, batch)
    parts = {name: gdn().placed(value) for name, value in vars(prepared.mixed_metadata).items()}
    return {"mixed": parts, "rest": gdn().fields_of(prepared)}, waits


CHECKS = {
    "metadata": metadata,
    "forwards": forwards,
}
