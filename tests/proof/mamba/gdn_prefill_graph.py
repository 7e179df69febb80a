"""Replays in place of a GPU's; a stand-in computes what FlashInfer's kernel does.

In `Loading`, states come from the host layer by layer, as a hierarchical cache loads them. The
release's own counter says which layer has come. What stands for a GPU's stream, on which the loads
are, does a load when somebody waits for it, or at the very end.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from sglang_perf_patches.sets.mamba.gdn_prefill_graph import body, kernel_break
from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import some
from sglang_perf_patches.verify.mamba import gdn_prefill_graph as on_gpu
from sglang_perf_patches.verify.mamba.cases import Batch, Request, draw
from sglang_perf_patches.verify.mamba.gdn_prefill_graph import (
    FOLLOWED,
    PATCH,
    Replays,
    Runner,
    is_ours,
    is_patched,
)
from tests.proof.mamba import flashinfer
from tests.proof.mamba.harness import Counted, alike, counted_gdn, noted

DRAWN = 1
"""Drawn replays: each takes up to a minute of Triton's interpreter."""


class Loading(Replays):
    """The same while the states of cached prefixes are still to be loaded from the host."""


OVERFULL = Loading.of(
    Batch((Request(1, 5, tracked=False), Request(3, tracked=False))),
    Batch(tuple(Request(1, n, tracked=False) for n in range(4))),
    Batch((Request(2, 64, tracked=False),)),
    left=frozenset({1}),
    rows=2,
)
"""More requests than a table has rows, between two that fit."""

EDGES = (
    Loading.of(*FOLLOWED, spare=5, smaller=(64,)),
    OVERFULL,
    # a bucket of another tile than some of its batches
    Replays.of(
        Batch((Request(15, 3, tracked=False),)),
        Batch((Request(33, 5, tracked=False),)),
        left=frozenset({0}),
        smaller=(8,),
    ),
    Replays.of(Batch((Request(1, tracked=False),))),
    Replays.of(Batch((Request(1, tracked=False),)), spare=3),
    Replays.of(Batch((Request(16, tracked=False),), tracking=False)),
    Replays.of(Batch(tuple(Request(1, n, tracked=False) for n in range(9)))),
    Loading.of(Batch((Request(64),)), Batch((Request(65, 64),)), spare=64),
    Loading.of(
        Batch((Request(70, 64, seqlen=129), Request(9, 3, tracked=False)), mode="MIXED"),
        smaller=(64,),
    ),
)
"""The smallest buckets, one that is full, tables that held more, a prefix of the batch before."""

BREAKS = (
    # many requests, then one: the kernel's call is of the batch, whatever the tables held
    Loading.of(
        FOLLOWED[0],
        Batch((Request(64),)),
        Batch((Request(30, tracked=False), Request(5, 64, tracked=False)), tracking=False),
        spare=5,
        smaller=(8,),
    ),
    OVERFULL,
    Replays.of(Batch((Request(1, tracked=False),)), spare=3),
    # kept at a chunk, at the end, and before the end
    Loading.of(
        Batch((Request(70, 64, seqlen=129), Request(128, 64), Request(9, 3, tracked=False))),
        Batch((Request(65, 64), Request(1, 7, tracked=False)), mode="MIXED"),
        spare=64,
    ),
)
"""The same where the graph breaks at the kernel's call: there no tile and no empty row matters."""


def draw_replays(random: Random) -> Replays:
    batches = tuple(_within(draw(random)) for _ in range(random.randint(1, 2)))
    most = max(batch.tokens for batch in batches)
    bucket = most + random.choice((0, 1, 7, random.randint(0, most)))
    return random.choice((Replays, Loading))(batches, bucket, left=None)


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


class _Loads:
    """What was put on a stream, in order, and how much of it is done."""

    def __init__(self, counter: Any) -> None:
        self._counter = counter
        self.work: list[Callable[[], object]] = []
        self.done = 0

    def until(self, end: int) -> None:
        with self._counter.paused():
            while self.done < end:
                self.work[self.done]()
                self.done += 1


class _Event:
    """A place on the stream of loads; the current stream waits for it at once."""

    def __init__(self, loads: _Loads) -> None:
        self._loads = loads
        self.place = 0

    def record(self) -> None:
        self.place = len(self._loads.work)

    def query(self) -> bool:
        return self._loads.done >= self.place


@contextmanager
def loading(pool: Any, wanted: Batch, counter_of_waits: Any) -> Iterator[None]:
    """Within, the states of a batch's cached prefixes are still to be loaded into their slots.

    Until then the slots hold something else. The loads themselves are no waits of the host.
    """
    loads = _Loads(counter_of_waits)
    current = SimpleNamespace(wait_event=lambda event: loads.until(event.place))
    device = SimpleNamespace(Event=lambda: _Event(loads), current_stream=lambda: current)
    controller = importlib.import_module("sglang.srt.managers.cache_controller")
    with mock.patch.object(controller, "device_module", device):
        counter = controller.LayerDoneCounter(len(pool.mamba_map))
        producer = counter.update_producer()
        for layer, place in enumerate(pool.mamba_map.values()):
            loads.work += _loads_of(pool, wanted, place)
            counter.events[producer].complete(layer)
        counter.set_consumer(producer)
        pool.register_layer_transfer_counter(counter)
        try:
            yield
        finally:
            loads.until(len(loads.work))
            pool.register_layer_transfer_counter(None)


def _loads_of(pool: Any, wanted: Batch, layer: int) -> Iterator[Callable[[], object]]:
    """Copies of one layer's states, which are taken out of their slots until then."""
    cache = pool.mamba_pool.mamba_cache
    for row, request in enumerate(wanted.requests):
        for states in (*cache.conv, cache.temporal) if request.cached else ():
            slot = states[layer, row + 1]
            true = slot.clone()
            slot.copy_(true.flip(-1) * 3)
            yield partial(slot.copy_, true)


class Captured(on_gpu.Captured):
    """Replays of a rig whose waits count: those of replays that are not left to stock."""

    play: Counted

    def captured(self, wanted: Replays) -> Runner:
        """A server boots only once, so its waits do not count."""
        before = len(self.play.counter.found)
        runner = super().captured(wanted)
        del self.play.counter.found[before:]
        return runner

    def _replay(
        self, runner: Runner, wanted: Replays, batch: Batch, forward_batch: Any
    ) -> torch.Tensor:
        backend, found = self.play.rig.backend, self.play.counter.found
        before = len(found)
        is_loading = isinstance(wanted, Loading)
        pool, counter = self.play.rig.pool, self.play.counter
        with loading(pool, batch, counter) if is_loading else nullcontext():
            output = super()._replay(runner, wanted, batch, forward_batch)
        if is_patched(backend) and not is_ours(backend):
            del found[before:]
        return output


class WithBreaks(Captured):
    """Replays with the stand-in for FlashInfer's kernel."""

    is_captured = False

    def __init__(self, play: Counted) -> None:
        super().__init__(play, flashinfer.kernel(play.counter, is_captured=self.is_captured))


def replays(inputs: Inputs) -> int:
    """The whole prefill in one graph, with no wait of its own."""
    wanted = [*some(inputs, EDGES), *inputs(draw_replays, DRAWN)]
    return alike(PATCH, Captured(counted_gdn()).replayed, wanted)


def replays_with_breaks(inputs: Inputs) -> int:
    """The graph breaks at the kernel's call, with as many waits as stock's."""
    return alike(PATCH, noted(WithBreaks(counted_gdn()).replayed), some(inputs, BREAKS), most=None)


ONE = (
    Loading.of(
        Batch((Request(70, 64),)),
        # more requests, a split of another length, a state after the last token, none, and all rows
        Batch((Request(30, tracked=False), Request(5, 64, tracked=False))),
        Batch((Request(66),)),
        Batch((Request(64),)),
        Batch((Request(72, tracked=False),)),
        Batch((Request(140),)),
    ),
    # a bucket that is captured without a warm-up
    Replays.of(Batch((Request(70, 64),)), spare=5, smaller=(8, 16, 32, 64)),
)
TAKEN = [True, False, False, False, False, True, True]
"""Which batches of `ONE` replay a graph of one request."""
WAITS = (6, 0)
"""How often each of `ONE` waits: as stock, but not for the batches that replay such a graph."""


class WithOne(WithBreaks):
    """Replays where the kernel of one request is in a graph too; `taken`: by which batches."""

    is_captured = True

    def __init__(self, play: Counted) -> None:
        super().__init__(play)
        self.taken: list[bool] = []

    def replayed(self, wanted: Replays) -> dict[str, Any]:
        with mock.patch.object(kernel_break, "chunk_length", return_value=flashinfer.chunk_length):
            return super().replayed(wanted)

    def _left(self, batch: Any) -> dict[str, Any]:
        tables = body._tables_of(self.play.rig.backend.forward_metadata)
        if tables is not None:
            self.taken.append(tables.has_one)
        return super()._left(batch)


def replays_with_one(inputs: Inputs) -> int:
    """The kernel of one request is in the graph."""
    captured, wanted = WithOne(counted_gdn()), some(inputs, ONE)
    most: Callable[[Replays], int] = lambda each: WAITS[ONE.index(each)]  # noqa: E731
    count = alike(PATCH, captured.replayed, wanted, most=most)
    if len(wanted) == len(ONE) and captured.taken != TAKEN:
        raise AssertionError(f"graphs of one request: {captured.taken}, not {TAKEN}")
    return count


CHECKS = {
    "replays": replays,
    "several requests with FlashInfer": replays_with_breaks,
    "one request with FlashInfer": replays_with_one,
}
"""In place of the GPU's, by their names."""
