"""Prefills as a replayed graph runs them: on the tables of a bucket, and the capture's own batch.

A CPU has no graphs. But what a replay runs are the kernels of the capture with whatever the tables
hold by then, and that can be had: the layers are called with the batch of the capture, which knows
nothing of the one that is replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from random import Random
from typing import Any
from unittest import mock

import torch

from .alike import Played
from .batches import Batch, Request, draw
from .play import Play, plain


@dataclass(frozen=True)
class Replays:
    """Batches that follow each other on the same states, each replayed in the same bucket.

    Attributes:
        batches: what is replayed.
        bucket: tokens of the capture, no less than those of any batch.
    """

    batches: tuple[Batch, ...]
    bucket: int


def replays_of(*batches: Batch, more: int = 0) -> Replays:
    """Replays in the smallest bucket that takes the batches, or one with so many `more` tokens."""
    return Replays(batches, max(batch.tokens for batch in batches) + more)


EDGES = (
    # many requests, then one: leftovers of the first in the tables must not matter
    replays_of(
        Batch((Request(66, 64), Request(1, 128, tracked=False), Request(5, 64, tracked=False))),
        Batch((Request(65),)),
        Batch((Request(30), Request(5, 64)), tracking=False),
        more=5,
    ),
    replays_of(Batch((Request(1, tracked=False),))),
    replays_of(Batch((Request(1, tracked=False),)), more=3),
    replays_of(Batch((Request(16, tracked=False),), tracking=False)),
    replays_of(Batch(tuple(Request(1, n, tracked=False) for n in range(9)))),
    replays_of(Batch((Request(64),)), Batch((Request(65, 64),)), more=64),
    replays_of(Batch((Request(70, 64, seqlen=129), Request(9, 3, tracked=False)), mode="MIXED")),
)
"""The smallest buckets, one that is full, tables that held more, a prefix of the batch before."""


def draw_replays(random: Random) -> Replays:
    """One or two drawn batches in a bucket of up to twice their tokens."""
    batches = tuple(_within(draw(random)) for _ in range(random.randint(1, 2)))
    most = max(batch.tokens for batch in batches)
    return Replays(batches, most + random.choice((0, 1, 7, random.randint(0, most))))


def _within(batch: Batch) -> Batch:
    """Two requests at most, which is what Triton's interpreter gets through.

    No state is tracked after a request's last token: there metadata can say so, no kernel.
    """
    ends = [request.cached + request.new for request in batch.requests]
    requests = [
        replace(request, seqlen=None if (request.seqlen or 0) > end else request.seqlen)
        for request, end in zip(batch.requests, ends, strict=True)
    ][:2]
    return replace(batch, requests=tuple(requests))


class Captured:
    """Eager prefills of a rig, or replays of its captured ones where its backend has any."""

    def __init__(self, play: Play, servers: Any = None) -> None:
        """Use a rig that counts; while patches are live, the server's own kernel is `servers`."""
        self.play = play
        self.servers = servers

    def replayed(self, wanted: Replays) -> Played:
        """Outputs of all layers and all states after the batches on the same random states."""
        backend = self.play.rig.backend
        if self.servers is None or not _is_patched(backend):
            return self._replayed(wanted)
        with mock.patch.object(backend.kernel_dispatcher, "extend_kernel", self.servers):
            return self._replayed(wanted)

    def _replayed(self, wanted: Replays) -> Played:
        rig = self.play.rig
        rig.fill()
        captured = self._captured(wanted.bucket)
        outputs: list[torch.Tensor] = []
        waited: list[str] = []
        for seed, batch in enumerate(wanted.batches):
            inputs = rig.inputs(wanted.bucket, seed)
            given = self.play.batch(batch)
            self.play.counter.own(*(t for layer in inputs for t in layer.values()))
            with self.play.counting() as found:
                if captured is None:
                    rig.backend.init_forward_metadata(given)
                else:
                    rig.backend.refresh_prefill_graph_metadata(captured[0], given)
                for layer, values in zip(rig.layers, inputs, strict=True):
                    outputs.append(self._run(layer, values, batch, given, captured))
            waited += found
        if any(torch.equal(*pair) for pair in combinations(outputs, 2)):
            raise AssertionError(f"outputs of {wanted!r} are the same: nothing is computed")
        return {"outputs": plain(outputs), "states": plain(rig.states())}, waited

    def _captured(self, bucket: int) -> tuple[Any, Any] | None:
        backend = self.play.rig.backend
        if not backend.supports_prefill_graph_extend():
            return None
        # Like the runner's: one request without a prefix, and buffers that track nothing.
        batch = self.play.batch(Batch((Request(bucket, tracked=False),)))
        batch.mamba_prefill_track_mask_cpu = batch.mamba_track_seqlens_cpu = None
        with self.play.counting():  # for the tables are the device's; a server boots but once
            made = backend.init_prefill_graph_metadata(batch)
        if not backend.prefill_graph_extend_active():
            raise AssertionError("the backend has tables and does not say so")
        return made, batch

    def _run(
        self, layer: Any, values: Any, batch: Batch, given: Any, captured: Any
    ) -> torch.Tensor:
        tokens = batch.tokens
        if captured is None:
            return self.play.rig.run(layer, given, {k: v[:tokens] for k, v in values.items()})
        output = self.play.rig.run(layer, captured[1], values)
        with self.play.counter.paused():
            if output[:, tokens:].any():
                raise AssertionError("rows that no request has are not zero")
            return output[:, :tokens]


def _is_patched(backend: Any) -> bool:
    return "supports_prefill_graph_extend" in vars(type(backend))
