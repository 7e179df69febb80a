"""Replayed prefills give the outputs and states of stock's graphs, whose layers run eagerly.

Both sides are captured and replayed as in `prefill_graphs`, for the layers of a rig. Stock's graphs
break at each layer. What a patched replay runs is what its capture took note of, with whatever the
tables hold by then: no Python of a layer.
"""

from __future__ import annotations

import copy
import functools
import importlib
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from ...sets.mamba.gdn_prefill_graph import kernel_break
from ...sets.mamba.gdn_prefill_graph.prefill_tables import ChunkTables
from .. import Missing, Needless, prefill_graphs
from ..comparing import same
from ..stock import NoneByDefault
from .cases import Batch, Request
from .harness import Play, plain, require_apart
from .rig import ATTENTION, ON_GPU, Rig

PATCH = "mamba.gdn-prefill-graph"


@dataclass(frozen=True)
class Replays:
    """Batches that follow each other on the same states, each replayed in the same bucket."""

    batches: tuple[Batch, ...]
    bucket: int  # tokens of the capture, no less than those of any batch
    left: frozenset[int] | None = frozenset()  # those that replay stock's own graph; None: any
    rows: int = ChunkTables.MOST  # the most requests of a patched replay
    smaller: tuple[int, ...] = ()  # further buckets of the server

    @classmethod
    def of(cls, *batches: Batch, spare: int = 0, **options: Any) -> Any:
        """Replays in the smallest bucket that takes the batches, or one with `spare` more."""
        return cls(batches, max(batch.tokens for batch in batches) + spare, **options)


FOLLOWED = (
    Batch((Request(66, 64), Request(1, 128, tracked=False), Request(5, 64, tracked=False))),
    Batch((Request(65),)),
    Batch((Request(30), Request(5, 64)), tracking=False),
)
"""Many requests, then one: leftovers of the first in the tables must not matter."""

ONE = Replays.of(Batch((Request(519),)), Batch((Request(519, 64),)), spare=57)
NEXT = Replays.of(Batch((Request(130, 64),)), spare=14)
"""A bucket that is captured after that of `ONE`, so without a warm-up."""
SEVERAL = Replays.of(Batch((Request(500), Request(500, 64, tracked=False)) * 2), spare=48)
"""Prompts as a GPU gets them, in buckets of a server's."""

REPLAYS = (
    Replays.of(*ONE.batches, *FOLLOWED, spare=57, smaller=(64,)),
    SEVERAL,
    # more requests than a table has rows, between two that fit, and a single token
    Replays.of(
        Batch((Request(5, 5, tracked=False), Request(11, tracked=False))),
        Batch(tuple(Request(4, n, tracked=False) for n in range(4))),
        Batch((Request(16, 64, tracked=False),)),
        Batch((Request(1, tracked=False),)),
        left=frozenset({1}),
        rows=2,
    ),
    # a bucket of another tile than one of its batches
    Replays.of(
        Batch((Request(16, 3, tracked=False),)),
        Batch((Request(33, 5, tracked=False),)),
        spare=15,
        left=frozenset({0}),
        smaller=(8,),
    ),
    # some tracked, some not
    Replays.of(
        Batch((Request(127, 256), Request(128, 55, tracked=False))),
        Batch((Request(65, 83, tracked=False), Request(65, 36))),
        spare=1,
        left=None,
    ),
)
"""Few buckets, of whole sixteens: a GPU compiles each kernel for 1, for such and for others."""


class Captured:
    """Replays of a rig's layers, with its own prefill kernel or another, at which graphs break."""

    def __init__(self, play: Play, kernel: Any = None) -> None:
        self.play = play
        self.kernel = kernel

    def replayed(self, wanted: Replays) -> dict[str, Any]:
        """Outputs of all layers and all states after the batches on the same random states."""
        backend = self.play.rig.backend
        with ExitStack() as stack:
            for tables in (ChunkTables, kernel_break.BreakTables):
                stack.enter_context(mock.patch.object(tables, "MOST", wanted.rows))
            if self.kernel is not None:
                dispatcher = backend.kernel_dispatcher
                stack.enter_context(mock.patch.object(dispatcher, "extend_kernel", self.kernel))
            runner = self.captured(wanted)
            self.play.rig.fill()
            outputs: list[torch.Tensor] = []
            after: list[Any] = []
            most = runner.stocks._captured_attn_metadata_max_bs
            for number, batch in enumerate(wanted.batches):
                if most is not None and len(batch.requests) > most:
                    raise AssertionError(f"{batch!r} replays no graph")
                forward_batch = self.play.batch(batch)
                runner.feed(number)
                backend._use_strided_target_verify_qkv = True  # as a verify leaves it
                outputs.append(self._replay(runner, wanted, batch, forward_batch))
                after.append(self._left(forward_batch))
                ours, left = is_ours(backend), wanted.left
                if is_patched(backend) and left is not None and ours == (number in left):
                    raise AssertionError(f"{batch!r} is {'captured' if ours else 'left to stock'}")
        require_apart(outputs, wanted)
        states = plain(self.play.rig.states())
        return {"outputs": plain(outputs), "states": states, "after": after}

    def _replay(
        self, runner: Runner, _wanted: Replays, _batch: Batch, forward_batch: Any
    ) -> torch.Tensor:
        with self.play.counting():
            return runner.replay(forward_batch).clone()

    def captured(self, wanted: Replays) -> Runner:
        """As a server's: one request without a prefix, and buffers that track nothing."""
        batch = self.play.batch(Batch((Request(wanted.bucket, tracked=False),)))
        batch.mamba_prefill_track_mask_cpu = batch.mamba_track_seqlens_cpu = None
        has_one = any(len(each.requests) == 1 for each in wanted.batches)
        with self.play.counting(), self._few_compiled(has_one):  # the tables are the device's
            return Runner(self.play, batch, wanted.smaller)

    def _few_compiled(self, has_one: bool) -> Any:
        """Within a capture: only those calls of FlashInfer's kernel whose results a replay reads.

        These are calls with checkpoints, and only if a batch has one request: for others the graph
        breaks there, and a replay of the wrong graph gives zeros. FlashInfer would compile four
        kernels for each kind of call.
        """
        if self.kernel is None:
            return nullcontext()
        run = self.kernel._prefill_fn

        @functools.wraps(run)
        def prefill(**arguments: Any) -> Any:
            if has_one and arguments["checkpoint_every_n_tokens"]:
                return run(**arguments)
            return arguments["output"].zero_(), arguments["output_state"].zero_()

        return mock.patch.object(self.kernel, "_prefill_fn", prefill)

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


class Runner:
    """The release's runner, in `stocks`, with a captured bucket and a server's `smaller` ones."""

    def __init__(self, play: Play, capture: Any, smaller: Sequence[int]) -> None:
        self._play = play
        self._rig = rig = play.rig
        self._bucket = int(capture.extend_num_tokens)
        self._inputs = rig.inputs(self._bucket)
        play.own(*(tensor for layer in self._inputs for tensor in layer.values()))
        hybrid = _hybrid(rig)
        model_runner = NoneByDefault(
            attn_backend=hybrid,
            model=NoneByDefault(),
            req_to_token_pool=rig.pool,
            device=rig.device,
        )
        uses_captured = hybrid.use_captured_forward_metadata_for_breakable_cuda_graph
        self.stocks = prefill_graphs.runner_of(
            model_runner,
            use_captured_attn_metadata=uses_captured,
            attn_metadata_buffers={} if uses_captured else None,
            _captured_attn_metadata_max_bs=hybrid.prefill_cuda_graph_max_batch_size,
            capture_num_tokens=[*smaller, self._bucket],
            attention_layers=rig.layers,
            capture_prepare=lambda _: (_whole(capture), hybrid),
            _run_forward=self._run,
        )
        within = play.capturing(self.stocks.backend)
        prefill_graphs.capture(self.stocks, self._bucket, within)

    def feed(self, seed: int) -> None:
        """Other inputs for the layers, into the tensors that the capture read."""
        drawn = self._rig.inputs(self._bucket, seed)
        for held, inputs in zip(self._inputs, drawn, strict=True):
            for name, value in inputs.items():
                held[name].copy_(value)

    def replay(self, batch: Any) -> torch.Tensor:
        """What the layers put out, of shape ``[bucket, …]``, for a batch and their inputs."""
        batch = _whole(batch)
        static = copy.copy(batch)
        if static.forward_mode.name == "MIXED":
            static.forward_mode = type(static.forward_mode).EXTEND
        static.out_cache_loc = static.positions = batch.out_cache_loc.new_zeros(self._bucket)
        with self._play.graphs():
            return prefill_graphs.replay(self.stocks, self._bucket, batch, static)[0]

    def _run(self, batch: Any, _: int) -> torch.Tensor:
        layers = zip(self._rig.layers, self._inputs, strict=True)
        with self.stocks._prefill_forward_context(batch):
            outputs = [layer.forward(batch, **of_layer)[0] for layer, of_layer in layers]
        return torch.cat(outputs, dim=1)


def _whole(batch: Any) -> Any:
    """A batch that nothing padded, unless it says that something did."""
    if batch.global_num_token_non_padded_cpu is None:
        batch.global_num_token_non_padded_cpu = int(batch.extend_num_tokens)
    return batch


def _hybrid(rig: Rig) -> Any:
    """The release's hybrid backend, around a rig's and a full-attention one without layers."""
    module = importlib.import_module(f"{ATTENTION}.hybrid_linear_attn_backend")
    base = importlib.import_module(f"{ATTENTION}.base_attn_backend").AttentionBackend

    class Full(base):  # type: ignore[misc, valid-type]
        token_to_kv_pool = kv_index_translator = None
        needs_cpu_seq_lens = False
        req_to_token_pool = rig.pool

        def init_forward_metadata(self, forward_batch: Any) -> None:
            pass

    with mock.patch.object(module, "check_cuda_graph_backend", return_value=True):
        return module.HybridLinearAttnBackend(Full(), rig.backend, [])


def is_patched(backend: Any) -> bool:
    """Whether the patch is live in the backend's class."""
    return "supports_prefill_graph_extend" in vars(type(backend))


def is_ours(backend: Any) -> bool:
    """Whether the last forward ran on tables."""
    return is_patched(backend) and bool(backend.prefill_graph_extend_active())


def with_flashinfer(*wanted: Replays) -> int:
    """The graph breaks at FlashInfer's kernel, which a Hopper GPU runs by default."""
    module: Any = importlib.import_module(f"{ATTENTION}.linear.kernels.gdn_flashinfer")
    if torch.cuda.get_device_capability()[0] != 9:  # `BreakTables.unserved`
        raise Needless("the patch uses FlashInfer's kernel on Hopper GPUs only")
    if not module.is_flashinfer_gdn_prefill_available():
        raise Missing("FlashInfer's kernel is not installed")
    captured = Captured(Play(Rig(ON_GPU)), module.FlashInferGDNKernel())
    return same(PATCH, captured.replayed, wanted)


CHECKS = {"replays": lambda _: same(PATCH, Captured(Play(Rig(ON_GPU))).replayed, REPLAYS)}
