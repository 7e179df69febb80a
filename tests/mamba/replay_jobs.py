"""Replays of `mamba.gdn-prefill-graph` that are compared with stock's, also while it is broken."""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

import dataclasses
import gc
import importlib
from collections.abc import Mapping
from typing import Any
from unittest import mock

from tests.proof import stubs

stubs.lend()

import torch

import sglang_perf_patches
from sglang_perf_patches.live import engine
from sglang_perf_patches.sets.mamba.gdn_prefill_graph import (
    PATCH,
    kernel_break,
    prefill_tables,
)
from sglang_perf_patches.sets.mamba.gdn_prefill_graph import body as gdn_prefill_graph
from sglang_perf_patches.verify.mamba.cases import Batch, Request
from sglang_perf_patches.verify.mamba.gdn_prefill_graph import Replays, Runner
from sglang_perf_patches.verify.mamba.rig import Rig
from tests.proof.mamba.gdn_prefill_graph import ONE, Captured, Loading, WithBreaks, WithOne
from tests.proof.mamba.harness import Counted, alike, counted_gdn

PREFILL_GRAPH = PATCH.id
_EXECUTOR = "sglang.srt.model_executor"


@dataclasses.dataclass(frozen=True)
class OfRank(Batch):
    """A batch of one of two ranks of data-parallel attention.

    `other`: tokens of the other rank, and its requests. `idle`: this one has none, and made one up.
    """

    other: tuple[int, int] = (0, 0)
    idle: bool = False


class Gathered(WithOne):
    """Replays of such batches, with what the scheduler has gathered from both ranks."""

    def captured(self, wanted: Replays) -> Runner:
        module = importlib.import_module(f"{_EXECUTOR}.runner.prefill_cuda_graph_runner")
        gathers = property(lambda _: True, lambda *_: None)
        kind = module.PrefillCudaGraphRunner
        with mock.patch.object(kind, "require_mlp_tp_gather", gathers, create=True):
            return super().captured(wanted)

    def _replay(
        self, runner: Runner, wanted: Replays, batch: Batch, forward_batch: Any
    ) -> torch.Tensor:
        assert isinstance(batch, OfRank)
        tokens, requests = batch.other
        own = 0 if batch.idle else batch.tokens
        forward_batch.original_global_num_tokens_cpu = [own, tokens]
        forward_batch.global_num_tokens_for_logprob_cpu = [int(not batch.idle), requests]
        forward_batch.global_num_token_non_padded_cpu = own
        return super()._replay(runner, wanted, batch, forward_batch)


def of_a_rank() -> dict[str, Any]:
    """Compared replays of a rank, and which of them were of the graph of one request."""
    requests = ONE[0].batches[0].requests
    batches = (
        OfRank(requests, other=(5, 2)),  # it fits by itself, and the other rank's does not
        OfRank(requests, other=(5, 1)),
        OfRank((Request(1, 5, tracked=False),), other=(5, 1), idle=True),
    )
    ranks = Gathered(counted_gdn())
    wanted = Replays.of(*batches, left=frozenset({0}), rows=1)
    compared = alike(PREFILL_GRAPH, ranks.replayed, [wanted], most=None)
    return {"compared": compared, "one request": ranks.taken}


def many() -> int:
    """Replays of more requests than tables hold, of as many, and of more again."""
    play = Counted(Rig(requests=70, slots=160))
    most = prefill_tables.ChunkTables.MOST
    batches = [
        Batch(tuple(Request(1 + (n == 0), cached=n, tracked=False) for n in range(count)))
        for count in (most + 1, most, most + 2)
    ]
    wanted = Replays.of(*batches, left=frozenset({0, 2}))
    return alike(PREFILL_GRAPH, Captured(play).replayed, [wanted])


def broken() -> dict[str, str]:
    """What the proof reports for a patch that is broken on purpose."""
    loaded = Loading.of(Batch((Request(3, 64, tracked=False),)))
    crossing = Replays(
        (Batch((Request(15, 3, tracked=False),)),), bucket=33, left=frozenset({0}), smaller=(8,)
    )

    breaks: dict[str, tuple[Any, str, Any, Replays]] = {
        "no wait": (gdn_prefill_graph, "_wait_for_loads", lambda *_: None, loaded),
        "any tile": (prefill_tables, "tile", lambda _: 64, crossing),
    }
    return _found(breaks, Captured)


def broken_breaks() -> dict[str, str]:
    """The same where the graph breaks at FlashInfer's kernel."""
    loaded = Loading.of(Batch((Request(3, 64, tracked=False),)), spare=2)
    kept = Replays.of(Batch((Request(70, 64, seqlen=129), Request(128, 64))), spare=3)
    live = kernel_break.live

    def changed(**wrong: Any) -> Any:
        return lambda *given: dataclasses.replace(live(*given), **wrong)

    def other_slots(*given: Any) -> Any:
        live_rows = live(*given)
        return dataclasses.replace(live_rows, slots=live_rows.slots + 1)

    breaks: dict[str, tuple[Any, str, Any, Replays]] = {
        "no wait": (gdn_prefill_graph, "_wait_for_loads", lambda *_: None, loaded),
        "all rows of the bucket": (kernel_break, "live", changed(tokens=5), loaded),
        "another slot": (kernel_break, "live", other_slots, loaded),
        "no state kept at chunks": (kernel_break, "live", changed(at_chunks=None), kept),
        "no state kept at the end": (kernel_break, "live", changed(final=None), kept),
    }
    return _found(breaks, WithBreaks, most=None)


def broken_one() -> dict[str, str]:
    """The same where the kernel of one request is in the graph."""
    one = kernel_break.OneRequest
    fill = one.fill

    def changed(name: str, by: int = 1) -> Any:
        def wrong(self: Any, *given: Any) -> None:
            fill(self, *given)
            getattr(self, name).add_(by).clamp_(min=0)

        return wrong

    def taken_if(**wrong: Any) -> Any:
        """`OneRequest.takes` by other numbers."""

        def wrongly(self: Any, *given: Any) -> bool:
            with mock.patch.multiple(self, **wrong):
                return bool(takes(self, *given))

        return wrongly

    takes, (wanted,) = one.takes, ONE[:1]
    breaks: dict[str, tuple[Any, str, Any, Replays]] = {
        "any split": (one, "takes", taken_if(_length=lambda _: 0), wanted),
        "another state at a chunk": (one, "fill", changed("source", -1), wanted),
        "another slot": (one, "fill", changed("slot"), wanted),
        "kept in another slot": (one, "fill", changed("target"), wanted),
        "another end": (one, "fill", changed("starts"), wanted),
        "rows past the end": (kernel_break, "prepare", _Everything(kernel_break.prepare), wanted),
    }
    return _found(breaks, WithOne, most=None)


class _Everything:
    """`kernel_break.prepare` as if the batch had all rows."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        def launch(*given: Any, **sizes: Any) -> None:
            *rows, _, starts = given[:5]
            past = torch.arange(given[11]) >= starts[1]
            for each in rows:  # else new memory may be zero by chance
                each.masked_fill_(past.view(-1, 1, 1), 1)
            ends = torch.full_like(starts, given[11])
            self._kernel[grid](*given[:4], ends, *given[5:], **sizes)

        return launch


def _found(
    breaks: Mapping[str, tuple[Any, str, Any, Replays]], kind: type[Captured], **options: Any
) -> dict[str, str]:
    """Break → what the comparison says while an attribute of an owner is another."""
    errors = {}
    for name, (owner, attribute, wrong, wanted) in breaks.items():
        with mock.patch.object(owner, attribute, wrong):
            try:
                play = kind(counted_gdn())
                errors[name] = f"equal: {alike(PREFILL_GRAPH, play.replayed, [wanted], **options)}"
            except AssertionError as different:
                errors[name] = f"different: {different}"
        _off()
    return errors


def _off() -> None:
    """Also after a comparison that failed within a replay, whose runner is in its traceback."""
    gc.collect()
    sglang_perf_patches.deactivate()
    assert engine.report() is None, engine.report()
