"""Replays of captured gated-delta-net prefills on a GPU, beside stock's eager layers.

A replay is what `mamba.gdn-prefill-graph` leaves to do: the tables are filled and one graph is
launched, in a server together with what is captured around the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from ..proof import Different
from ..proof.comparing import require_same, selected
from .report import Cell, Table
from .timing import Ratio, call_time, in_turns, progress

_LAYERS = 6
_FORWARDS = 10
"""Forwards that a time is the mean of."""

_PATCH = "mamba.gdn-prefill-graph"


def table(torch: Any, rounds: int) -> Table:
    """Outputs and states compared to the bit, and times in turns.

    Args:
        torch: the module, with a GPU.
        rounds: how often each side is timed; below 2, it only compares.

    Raises:
        Different: an output or a state is not stock's, or filling the tables waits.
    """
    rig = import_module("..proof.mamba.rig", __package__)
    size = replace(rig.QWEN3_NEXT, layers=_LAYERS)
    gdn_rig = rig.Rig(size, "cuda", slots=24)
    rows: list[tuple[Cell, ...]] = []
    for name, bucket, batches in progress(_cases(), "captured prefills"):
        expected = _eager(gdn_rig, bucket, batches)
        with selected(_PATCH):
            graph = _Graph(torch, gdn_rig, bucket)
            actual = graph.replays(batches)
        require_same(name, expected, actual)
        timed = _times(torch, gdn_rig, graph, batches[0], rounds)
        spread = (None, None, None) if timed is None else (1e3 * timed.stock, 1e3 * timed.patched)
        rows.append((name, bucket, *spread[:2], timed))
    return Table(
        "mamba",
        f"prefills of {_LAYERS} gated-delta-net layers: eager, and replayed from a graph",
        ("requests", "bucket", "stock, ms", "patched, ms", "patched : stock"),
        tuple(rows),
        (
            "Qwen3-Next's dimensions in bfloat16, no projections. Patched is the filling of the "
            "tables and one replay. Outputs and states of each row are equal bit by bit, and "
            "filling passes torch.cuda.set_sync_debug_mode(“error”).",
        ),
    )


def _cases() -> list[tuple[str, int, Sequence[Any]]]:
    batches = import_module("..proof.mamba.cases", __package__)
    request, batch = batches.Request, batches.Batch
    return [
        ("1x519 tracked", 576, (batch((request(519),)), batch((request(519, 64),)))),
        ("1x519 no tracking", 576, (batch((request(519),), tracking=False),)),
        ("4x512 tracked", 2048, (batch((request(512),) * 4),)),
        ("4x500 half tracked", 2048, (batch((request(500), request(500, 64, False)) * 2),)),
        ("1x2000 tracked", 2048, (batch((request(2000, 2048),)),)),
        ("1x1", 4, (batch((request(1, 30, False),)),)),
    ]


def _eager(rig: Any, bucket: int, batches: Sequence[Any]) -> list[Any]:
    play = import_module("..proof.mamba.play", __package__)
    rig.fill()
    outputs = []
    for seed, wanted in enumerate(batches):
        inputs = rig.inputs(bucket, seed)
        cut = [{name: value[: wanted.tokens] for name, value in each.items()} for each in inputs]
        outputs += [output.clone() for output in rig.forward(play.known_batch(rig, wanted), cut)]
    return [*outputs, *(state.clone() for state in rig.states())]


class _Graph:
    """The layers of a rig, captured for a bucket."""

    def __init__(self, torch: Any, rig: Any, bucket: int) -> None:
        self.torch = torch
        self.rig = rig
        self.bucket = bucket
        play = import_module("..proof.mamba.play", __package__)
        self.known = play.known_batch
        batches = import_module("..proof.mamba.cases", __package__)
        batch = rig.batch(batches.Batch((batches.Request(bucket, tracked=False),)))
        batch.mamba_prefill_track_mask_cpu = batch.mamba_track_seqlens_cpu = None
        if not rig.backend.supports_prefill_graph_extend():
            raise Different("the backend's prefill can't be captured here")
        ours = import_module("..sets.mamba.gdn_prefill_graph.body", __package__)
        with ours.capturing(rig.backend):
            self.metadata = rig.backend.init_prefill_graph_metadata(batch)
        self.inputs = [
            {name: value.clone() for name, value in each.items()} for each in rig.inputs(bucket)
        ]

        def run() -> list[Any]:
            return [
                rig.run(layer, batch, each)
                for layer, each in zip(rig.layers, self.inputs, strict=True)
            ]

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # compile, and tune
                run()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = run()

    def replays(self, batches: Sequence[Any]) -> list[Any]:
        """Outputs of the layers and the states after it, as `_eager`."""
        self.rig.fill()
        outputs = []
        for seed, wanted in enumerate(batches):
            for mine, each in zip(self.inputs, self.rig.inputs(self.bucket, seed), strict=True):
                for name, value in each.items():
                    mine[name].copy_(value)
            batch = self.known(self.rig, wanted)
            self.torch.cuda.synchronize()
            self.torch.cuda.set_sync_debug_mode("error")
            try:
                self.replay(batch)
            except RuntimeError as error:
                raise Different(f"{wanted!r}: {error}") from error
            finally:
                self.torch.cuda.set_sync_debug_mode("default")
            if any(bool(output[:, wanted.tokens :].any()) for output in self.outputs):
                raise Different(f"{wanted!r}: rows that no request has are not zero")
            outputs += [output[:, : wanted.tokens].clone() for output in self.outputs]
        return [*outputs, *(state.clone() for state in self.rig.states())]

    def replay(self, batch: Any) -> None:
        """What a server does for a batch."""
        self.rig.backend.refresh_prefill_graph_metadata(self.metadata, batch)
        self.graph.replay()


def _times(torch: Any, rig: Any, graph: _Graph, wanted: Any, rounds: int) -> Ratio | None:
    inputs = rig.inputs(wanted.tokens)
    batch = graph.known(rig, wanted)

    def eager() -> float:
        return call_time(lambda: rig.forward(batch, inputs), _FORWARDS, torch.cuda.synchronize)

    def replayed() -> float:
        with selected(_PATCH):
            return call_time(lambda: graph.replay(batch), _FORWARDS, torch.cuda.synchronize)

    return in_turns(eager, replayed, rounds)
