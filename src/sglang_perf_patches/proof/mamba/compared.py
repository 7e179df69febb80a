"""The cases of the mamba set: each patch beside stock, on the release's own code."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import torch

from .. import Different, Inputs
from ..comparing import live, same, some
from . import flashinfer, play
from .alike import Played, alike
from .batches import EDGES, FORWARDS, PREFIX, Batch, Request, draw, draw_decode
from .captured import BREAKS, Captured, draw_replays
from .captured import EDGES as BUCKETS
from .kinds import Kda, Lightning, Mamba2
from .play import Play
from .rig import Rig, called

PREFILL_GRAPH = "mamba.gdn-prefill-graph"
ZERO_SYNC = "mamba.zero-sync"
CHUNKS = "mamba.mamba2-chunk-indices"
ROWS = "mamba.lightning-rows"

METADATA = 60
"""Drawn batches whose metadata is compared: each takes milliseconds."""

REPLAYS = 1
"""Drawn replays: each takes up to a minute of Triton's interpreter."""

SCHEDULED = (
    (Request(65), Request(9), Request(70, 64), Request(128, 128)),
    # In the next decode the first and the third reach 256 tokens, where it tracks.
    (Request(255), Request(9), Request(191, 64), Request(128, 128)),
)


@cache
def gdn() -> Play:
    """The gated-delta-net rig of this process."""
    return Play(Rig())


@cache
def mamba2() -> Play:
    """The Mamba2 rig of this process."""
    return Play(Mamba2())


def prefill_graph(inputs: Inputs) -> int:
    """``mamba.gdn-prefill-graph``: replays in buckets of all sizes, with no wait of their own."""
    wanted = [*some(inputs, BUCKETS), *inputs(draw_replays, REPLAYS)]
    count = alike([[PREFILL_GRAPH]], Captured(gdn()).replayed, wanted)
    counted = Captured(gdn(), flashinfer.kernel(gdn().counter)).counted
    return count + alike([[PREFILL_GRAPH]], counted, some(inputs, BREAKS), most=None)


def zero_sync(inputs: Inputs) -> int:
    """``mamba.zero-sync``: forwards, metadata, unknown batches, the scheduler's own batches.

    A decode is stock's own, with its waits.
    """
    forwards = some(inputs, [*FORWARDS.values()])
    extends = [batches for batches in forwards if batches[0].mode != "DECODE"]
    steps = [batches for batches in forwards if batches[0].mode == "DECODE"]
    drawn = [*EDGES, *inputs(draw, METADATA)]
    drawn_steps = [FORWARDS["decode"][0], *inputs(draw_decode, METADATA // 4)]
    tracked = sum(any(r.tracked for r in batch.requests) for batch in drawn)
    if not len(drawn) / 6 < tracked < len(drawn):
        raise Different(f"{tracked} of {len(drawn)} drawn batches are tracked")
    count = alike([[ZERO_SYNC]], gdn().forwards, extends)
    count += alike([[ZERO_SYNC]], gdn().metadata, drawn)
    count += same(ZERO_SYNC, gdn().forwards, steps, ran=False)
    count += same(ZERO_SYNC, gdn().metadata, drawn_steps, ran=False)
    count += alike([[ZERO_SYNC]], gdn().changed, play.UNKNOWN, most=None)
    count += alike([[ZERO_SYNC]], gdn().scheduled, SCHEDULED)
    if _kda_plans():
        kda = _planning(Play(Kda()))
        count += alike([[ZERO_SYNC]], kda, drawn)
        count += same(ZERO_SYNC, kda, drawn_steps, ran=False)
    return count


def chunk_indices(inputs: Inputs) -> int:
    """``mamba.mamba2-chunk-indices``: metadata, and forwards of the release's own mixers."""
    tracked = [*EDGES, *inputs(draw, METADATA)]
    drawn = [*tracked, *(Batch(batch.requests, tracking=False) for batch in tracked)]
    scenarios = prefills("mamba.mamba", PREFIX, FORWARDS["no mask"])[:1]
    count = alike([[CHUNKS]], mixed, drawn)
    count += alike([[CHUNKS]], mixed_changed, play.UNKNOWN, most=None)
    if play.is_old():
        return count + alike([[CHUNKS, ZERO_SYNC]], mamba2().forwards, scenarios)
    return count + alike([[CHUNKS]], mamba2().forwards, scenarios, most=None)


def lightning_rows(inputs: Inputs) -> int:
    """``mamba.lightning-rows``: forwards with both kernels."""
    few = (PREFIX, FORWARDS["none"], FORWARDS["no mask"])
    more = (*few, *some(inputs, (FORWARDS["half"], FORWARDS["chunks"])))
    count = 0
    # With minimax, each forward waits once to learn the slots.
    for kernel, wanted, own in (("seg_la", more, 0), ("minimax", few, 1)):
        scenarios = prefills("linear.lightning_backend", *wanted)
        if kernel == "seg_la" and len(scenarios) == 1:
            continue  # without tracking, the patch changes nothing
        rig = Play(Lightning(kernel))
        count += alike([[ROWS]], rig.forwards, scenarios, most=waits_of_metadata(rig, own))
    if source_has("linear.lightning_backend", "mamba_track"):
        with live(ROWS, ran=False):
            found = [gdn().tracks(requests) for requests in SCHEDULED]
        if any(mask != known or not any(mask) for mask, known in found):
            raise Different(f"{ROWS}: of the scheduler's batches the host knows {found}")
        count += len(found)
    return count


def waits_of_metadata(rig: Play, own: int = 0) -> Callable[[Sequence[Batch]], int]:
    """How often forwards wait for their metadata on stock, and `own` times each for other things.

    Their layers need not wait.
    """
    plan = _planning(rig)
    return lambda batches: sum(len(plan(batch)[1]) + own for batch in batches)


def prefills(module: str, *scenarios: tuple[Batch, ...]) -> list[tuple[Batch, ...]]:
    """All of them; only those without tracking where a release's layers track none."""
    tracks = source_has(module, "mamba_track")
    return [batches for batches in scenarios if tracks or not batches[0].tracking]


# -- cases other than forwards and metadata --------------------------------------------------------


def _planning(rig: Play) -> Any:
    """As `Play.metadata`, without the chunk indices, which are the gated delta net's."""

    def run(wanted: Batch) -> Played:
        batch = rig.batch(wanted)
        with rig.counting() as found:
            rig.rig.backend.init_forward_metadata(batch)
        return play.fields_of(rig.rig.backend.forward_metadata), found

    return run


def mixed(wanted: Batch) -> Played:
    """Mamba2's metadata, made of a gated delta net's batch."""
    return mixed_of(wanted, gdn().batch(wanted))


def mixed_changed(change: Callable[[Play, Any], None]) -> Played:
    """As `mixed`, of a batch that something changed on its way."""
    batch = gdn().batch(play.CHANGED)
    change(gdn(), batch)
    return mixed_of(play.CHANGED, batch)


def mixed_of(wanted: Batch, batch: Any) -> Played:
    """As `mixed`, of a batch that is there."""
    module = importlib.import_module(play.METADATA)
    lens = [request.new for request in wanted.requests]
    start = torch.tensor([0, *accumulate(lens)], dtype=torch.int32)
    slots = torch.arange(len(lens), dtype=torch.int32)
    gdn().counter.own(start, slots)
    metadata = called(module.ForwardMetadata, query_start_loc=start, mamba_cache_indices=slots)
    chunk = 16 if len(lens) % 2 else 256  # shorter than a request, or longer than all
    with gdn().counting() as found:
        made = module.Mamba2Metadata.prepare_mixed(metadata, chunk, batch)
    parts = {name: play.placed(value) for name, value in vars(made.mixed_metadata).items()}
    return {"mixed": parts, "rest": play.fields_of(made)}, found


def _module(name: str) -> Any:
    full = f"sglang.srt.layers.attention.{name}"
    try:
        return importlib.import_module(full)
    except ModuleNotFoundError as error:
        if error.name and full.startswith(error.name):
            return None
        raise


def _kda_plans() -> bool:
    """Whether the release's KDA backend makes metadata of its own."""
    found = _module("linear.kda_backend")
    return found is not None and "init_forward_metadata" in vars(found.KDAAttnBackend)


def source_has(module: str, text: str) -> bool:
    """Whether the source of one of the release's attention modules holds a text."""
    found = _module(module)
    if found is None:
        return False
    with open(found.__file__, encoding="utf-8") as file:
        return text in file.read()
