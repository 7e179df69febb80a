"""Replayed prefills give the outputs and states of stock's graphs, whose layers run eagerly.

Both sides are captured and replayed by the release's own code, see `runner`: stock's graphs break
at each layer. What a patched replay runs is what its capture took note of, with whatever the tables
hold by then: no Python of a layer.
"""

from __future__ import annotations

import functools
import importlib
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random
from typing import Any
from unittest import mock

import torch

from ...sets.mamba.gdn_prefill_graph import kernel_break
from ...sets.mamba.gdn_prefill_graph.chunk_tables import ChunkTables
from .. import Inputs, Missing, stock
from ..comparing import some
from .cases import Batch, Request, draw
from .harness import Play, Played, alike, gdn, plain
from .rig import ATTENTION
from .runner import Runner

PATCH = "mamba.gdn-prefill-graph"

DRAWN = 1
"""Drawn replays: each takes up to a minute of Triton's interpreter."""


@dataclass(frozen=True)
class Replays:
    """Batches that follow each other on the same states, each replayed in the same bucket.

    Attributes:
        batches: what is replayed.
        bucket: tokens of the capture, no less than those of any batch.
        loads: whether the states of cached prefixes are still to be loaded from the host.
        left: batches that replay stock's own graph, counted from the first; None for any.
        rows: the most requests of a patched replay.
        smaller: further buckets of the server.
    """

    batches: tuple[Batch, ...]
    bucket: int
    loads: bool = False
    left: frozenset[int] | None = frozenset()
    rows: int = ChunkTables.MOST
    smaller: tuple[int, ...] = ()


def replays_of(*batches: Batch, spare: int = 0, **options: Any) -> Replays:
    """Replays in the smallest bucket that takes the batches, or one with `spare` more tokens."""
    return Replays(batches, max(batch.tokens for batch in batches) + spare, **options)


OVERFULL = replays_of(
    Batch((Request(1, 5, tracked=False), Request(3, tracked=False))),
    Batch(tuple(Request(1, n, tracked=False) for n in range(4))),
    Batch((Request(2, 64, tracked=False),)),
    left=frozenset({1}),
    rows=2,
    loads=True,
)
"""More requests than a table has rows, between two that fit."""

EDGES = (
    # many requests, then one: leftovers of the first in the tables must not matter
    replays_of(
        Batch((Request(66, 64), Request(1, 128, tracked=False), Request(5, 64, tracked=False))),
        Batch((Request(65),)),
        Batch((Request(30), Request(5, 64)), tracking=False),
        spare=5,
        loads=True,
        smaller=(64,),
    ),
    OVERFULL,
    # a bucket of another tile than some of its batches
    replays_of(
        Batch((Request(15, 3, tracked=False),)),
        Batch((Request(33, 5, tracked=False),)),
        left=frozenset({0}),
        smaller=(8,),
    ),
    replays_of(Batch((Request(1, tracked=False),))),
    replays_of(Batch((Request(1, tracked=False),)), spare=3),
    replays_of(Batch((Request(16, tracked=False),), tracking=False)),
    replays_of(Batch(tuple(Request(1, n, tracked=False) for n in range(9)))),
    replays_of(Batch((Request(64),)), Batch((Request(65, 64),)), spare=64, loads=True),
    replays_of(
        Batch((Request(70, 64, seqlen=129), Request(9, 3, tracked=False)), mode="MIXED"),
        smaller=(64,),
        loads=True,
    ),
)
"""The smallest buckets, one that is full, tables that held more, a prefix of the batch before."""

ONE = replays_of(Batch((Request(519),)), Batch((Request(519, 64),)), spare=57)
SEVERAL = replays_of(Batch((Request(500), Request(500, 64, tracked=False)) * 2), spare=48)
"""Prompts as a GPU gets them, in buckets of a server's."""

ON_GPU = (
    replace(ONE, batches=(*ONE.batches, *EDGES[0].batches), smaller=(64,)),
    SEVERAL,
    # as OVERFULL, and a single token
    replays_of(
        Batch((Request(5, 5, tracked=False), Request(11, tracked=False))),
        Batch(tuple(Request(4, n, tracked=False) for n in range(4))),
        Batch((Request(16, 64, tracked=False),)),
        Batch((Request(1, tracked=False),)),
        left=frozenset({1}),
        rows=2,
    ),
    # as the third of EDGES
    replays_of(
        Batch((Request(16, 3, tracked=False),)),
        Batch((Request(33, 5, tracked=False),)),
        spare=15,
        left=frozenset({0}),
        smaller=(8,),
    ),
)
"""Fewer buckets, of whole sixteens: a GPU compiles each kernel for 1, for such and for others."""


def draw_replays(random: Random) -> Replays:
    """One or two drawn batches in a bucket of up to twice their tokens."""
    batches = tuple(_within(draw(random)) for _ in range(random.randint(1, 2)))
    most = max(batch.tokens for batch in batches)
    bucket = most + random.choice((0, 1, 7, random.randint(0, most)))
    return Replays(batches, bucket, loads=bool(random.randint(0, 1)), left=None)


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
    """Replays of a rig's layers."""

    def __init__(self, play: Play, kernel: Any = None, stays: Any = None) -> None:
        """Use a rig with its own prefill kernel, or with another.

        Args:
            play: of the rig.
            kernel: in place of the rig's own, at which graphs break.
            stays: in place of the patch's own knowledge whether `kernel` may update the states of
                a number of requests in place.
        """
        self.play = play
        self.kernel = kernel
        self.stays = stays

    def counted(self, wanted: Replays) -> Played:
        """As `replayed`, with the number of waits among what must be equal."""
        played, waited = self.replayed(wanted)
        return {**played, "waits": len(waited)}, []

    def replayed(self, wanted: Replays) -> Played:
        """Outputs of all layers and all states after the batches on the same random states."""
        backend = self.play.rig.backend
        is_patched = _is_patched(backend)
        with ExitStack() as stack:
            patches: list[Any] = [
                mock.patch.object(tables, "MOST", wanted.rows)
                for tables in (ChunkTables, kernel_break.BreakTables)
            ]
            if self.kernel is not None:
                dispatcher = backend.kernel_dispatcher
                patches.append(mock.patch.object(dispatcher, "extend_kernel", self.kernel))
            if self.stays is not None:
                patches.append(mock.patch.object(kernel_break, "stays", return_value=self.stays))
            for patch in patches:
                stack.enter_context(patch)
            return self._replayed(wanted, is_patched)

    def _replayed(self, wanted: Replays, is_patched: bool) -> Played:
        runner = self._captured(wanted)
        self.play.rig.fill()
        outputs: list[torch.Tensor] = []
        after: list[Any] = []
        waited: list[str] = []
        for number, batch in enumerate(wanted.batches):
            if not runner.serves(len(batch.requests)):
                raise AssertionError(f"{batch!r} replays no graph")
            forward_batch = self.play.batch(batch)
            self._feed(runner, number)
            self.play.rig.backend._use_strided_target_verify_qkv = True  # as a verify leaves it
            with ExitStack() as stack:
                if wanted.loads:
                    stack.enter_context(self.play.loading(batch))
                waits = stack.enter_context(self.play.counting())
                outputs.append(runner.replay(forward_batch).clone())
            after.append(self._left(forward_batch))
            is_ours = _is_ours(self.play.rig.backend)
            if is_patched and wanted.left is not None and is_ours == (number in wanted.left):
                raise AssertionError(f"{batch!r} is {'captured' if is_ours else 'left to stock'}")
            if is_ours or not is_patched:  # a batch that is left to stock waits as stock does
                waited += waits
        if any(torch.equal(*pair) for pair in combinations(outputs, 2)):
            raise AssertionError(f"outputs of {wanted!r} are the same: nothing is computed")
        states = plain(self.play.rig.states())
        return {"outputs": plain(outputs), "states": states, "after": after}, waited

    def _captured(self, wanted: Replays) -> Runner:
        """As a server's: one request without a prefix, and buffers that track nothing."""
        batch = self.play.batch(Batch((Request(wanted.bucket, tracked=False),)))
        batch.mamba_prefill_track_mask_cpu = batch.mamba_track_seqlens_cpu = None
        inputs = self.play.rig.inputs(wanted.bucket)
        self.play.own(*(tensor for layer in inputs for tensor in layer.values()))
        # counting(): the tables are the device's, and a server boots only once
        with self.play.counting(), self._few_compiled():
            return Runner(self.play, batch, inputs, wanted.smaller)

    def _few_compiled(self) -> Any:
        """Within a capture: no call of FlashInfer's kernel without checkpoints.

        No graph holds it, and nothing reads its results. But FlashInfer would compile four kernels.
        """
        if self.kernel is None:
            return nullcontext()
        run = self.kernel._prefill_fn

        @functools.wraps(run)
        def prefill(**arguments: Any) -> Any:
            if arguments["checkpoint_every_n_tokens"]:
                return run(**arguments)
            return arguments["output"].zero_(), arguments["output_state"].zero_()

        return mock.patch.object(self.kernel, "_prefill_fn", prefill)

    def _feed(self, runner: Runner, seed: int) -> None:
        drawn = self.play.rig.inputs(runner.bucket, seed)
        for held, inputs in zip(runner.inputs, drawn, strict=True):
            for name, value in inputs.items():
                held[name].copy_(value)

    def _left(self, batch: Any) -> dict[str, Any]:
        """What Python holds after a forward, without tensors."""
        backend = self.play.rig.backend
        return {
            "out_cache_loc": tuple(batch.out_cache_loc.shape),
            "mode": batch.forward_mode.name,
            "items": backend.mis_metadata,
            "routing": backend._use_strided_target_verify_qkv,
            "tracked slots": plain(batch.mamba_track_indices),
        }


def _is_patched(backend: Any) -> bool:
    return "supports_prefill_graph_extend" in vars(type(backend))


def _is_ours(backend: Any) -> bool:
    """Whether the last forward ran on tables."""
    return _is_patched(backend) and bool(backend.prefill_graph_extend_active())


def replays(inputs: Inputs) -> int:
    """The whole prefill in one graph, with no wait of its own."""
    wanted = ON_GPU if stock.device() == "cuda" else EDGES
    return alike(
        (PATCH,), Captured(gdn()).replayed, [*some(inputs, wanted), *inputs(draw_replays, DRAWN)]
    )


def with_flashinfer(wanted: Replays) -> int:
    """The graph breaks at FlashInfer's kernel, which a Hopper GPU runs by default."""
    if stock.device() != "cuda":
        return 0  # the tests have a stand-in for the kernel
    module: Any = importlib.import_module(f"{ATTENTION}.linear.kernels.gdn_flashinfer")
    is_hopper = torch.cuda.get_device_capability()[0] == 9
    if not is_hopper or not module.is_flashinfer_gdn_prefill_available():
        raise Missing("FlashInfer's kernel is not for this GPU, or not installed")
    return alike((PATCH,), Captured(gdn(), module.FlashInferGDNKernel()).replayed, [wanted])


CHECKS = {"replays": replays}
