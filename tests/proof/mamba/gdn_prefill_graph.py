"""Replays whose graph breaks at FlashInfer's kernel, for which a stand-in computes on a CPU."""

from __future__ import annotations

from typing import Any
from unittest import mock

from sglang_perf_patches.sets.mamba.gdn_prefill_graph import body, one_request
from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import some
from sglang_perf_patches.verify.mamba.cases import Batch, Request
from sglang_perf_patches.verify.mamba.gdn_prefill_graph import OVERFULL, PATCH, Captured, replays_of
from sglang_perf_patches.verify.mamba.harness import alike
from tests.proof.mamba import flashinfer
from tests.proof.mamba.harness import Counted, counted_gdn

BREAKS = (
    # many requests, then one: the kernel's call is of the batch, whatever the tables held
    replays_of(
        Batch((Request(66, 64), Request(1, 128, tracked=False), Request(5, 64, tracked=False))),
        Batch((Request(64),)),
        Batch((Request(30, tracked=False), Request(5, 64, tracked=False)), tracking=False),
        spare=5,
        loads=True,
        smaller=(8,),
    ),
    OVERFULL,
    replays_of(Batch((Request(1, tracked=False),)), spare=3),
    # kept at a chunk, at the end, and before the end
    replays_of(
        Batch((Request(70, 64, seqlen=129), Request(128, 64), Request(9, 3, tracked=False))),
        Batch((Request(65, 64), Request(1, 7, tracked=False)), mode="MIXED"),
        spare=64,
        loads=True,
    ),
)
"""The same where the graph breaks at the kernel's call: there no tile and no empty row matters."""


def with_breaks(play: Counted) -> Captured:
    """Replays of a rig with the stand-in for FlashInfer's kernel."""
    return Captured(play, flashinfer.kernel(play.counter), flashinfer.is_whole)


def replays_with_breaks(inputs: Inputs) -> int:
    """The graph breaks at the kernel's call."""
    counted = with_breaks(counted_gdn()).counted
    return alike((PATCH,), counted, some(inputs, BREAKS), most=None)


ONE = (
    replays_of(
        Batch((Request(70, 64),)),
        # more requests, a split of another length, a state after the last token, none, and all rows
        Batch((Request(30, tracked=False), Request(5, 64, tracked=False))),
        Batch((Request(66),)),
        Batch((Request(64),)),
        Batch((Request(72, tracked=False),)),
        Batch((Request(140),)),
        loads=True,
    ),
    replays_of(Batch((Request(70, 64),)), smaller=(8, 16, 32, 64)),  # too many buckets
)
TAKEN = [True, False, False, False, False, True, False]
"""Which batches of `ONE` replay a graph of one request."""
WAITS = (6, 5)
"""How often each of `ONE` waits: as stock, but not for the batches that replay such a graph."""


class WithOne(Captured):
    """Replays where the kernel of one request is in a graph too.

    Attributes:
        taken: whether each batch that was replayed took it.
    """

    def __init__(self, play: Counted) -> None:
        kernel = flashinfer.kernel(play.counter, is_captured=True)
        super().__init__(play, kernel, flashinfer.is_whole)
        self.taken: list[bool] = []

    def replayed(self, wanted: Any) -> Any:
        """As `Captured.replayed`."""
        length = flashinfer.chunk_length
        with mock.patch.object(one_request, "chunk_length", return_value=length):
            return super().replayed(wanted)

    def _left(self, batch: Any) -> dict[str, Any]:
        tables = body._tables_of(self.play.rig.backend.forward_metadata)
        if tables is not None:
            self.taken.append(tables.has_one)
        return super()._left(batch)


def replays_with_one(inputs: Inputs) -> int:
    """The kernel of one request is in the graph."""
    captured, wanted = WithOne(counted_gdn()), some(inputs, ONE)
    count = alike((PATCH,), captured.replayed, wanted, most=lambda each: WAITS[ONE.index(each)])
    if len(wanted) == len(ONE) and captured.taken != TAKEN:
        raise AssertionError(f"graphs of one request: {captured.taken}, not {TAKEN}")
    return count


CHECKS = {"replays with breaks": replays_with_breaks, "replays with one": replays_with_one}
