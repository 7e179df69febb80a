"""The metadata and the forwards of Mamba2 layers equal stock's, without stock's waits."""

from __future__ import annotations

import importlib
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from .. import Inputs
from ..comparing import same
from ..stock import called
from .cases import EDGES, FORWARDS, METADATA, PREFIX, Batch, draw
from .harness import Play, prefills
from .rig import ON_GPU, Mamba2, Rig

PATCH = "mamba.mamba2-chunk-indices"


def of_metadata(inputs: Inputs) -> list[Batch]:
    """Drawn batches, each with tracking and without."""
    tracked = [*EDGES, *inputs(draw, METADATA)]
    return [*tracked, *(Batch(batch.requests, tracking=False) for batch in tracked)]


def of_forwards() -> list[tuple[Batch, ...]]:
    """One scenario of whole forwards."""
    return prefills("mamba.mamba", PREFIX, FORWARDS["no mask"])[:1]


def mixed(play: Play, wanted: Batch, batch: Any = None) -> dict[str, Any]:
    """Mamba2's metadata, made of a gated delta net's batch, which may be there already."""
    module = importlib.import_module("sglang.srt.layers.attention.mamba.mamba2_metadata")
    batch = play.batch(wanted) if batch is None else batch
    lens = [request.new for request in wanted.requests]
    tensor = partial(torch.tensor, dtype=torch.int32, device=play.rig.device)
    start, slots = tensor([0, *accumulate(lens)]), tensor(range(len(lens)))
    play.own(start, slots)
    forward = called(module.ForwardMetadata, query_start_loc=start, mamba_cache_indices=slots)
    chunk = 16 if len(lens) % 2 else 256  # shorter than a request, or longer than all
    with play.counting():
        prepared = module.Mamba2Metadata.prepare_mixed(forward, chunk, batch)
    parts = {name: play.placed(value) for name, value in vars(prepared.mixed_metadata).items()}
    return {"mixed": parts, "rest": play.fields_of(prepared)}


CHECKS = {
    "metadata": lambda inputs: same(PATCH, partial(mixed, Play(Rig(ON_GPU))), of_metadata(inputs)),
    "forwards": lambda _: same(PATCH, Play(Mamba2()).forwards, of_forwards()),
}
