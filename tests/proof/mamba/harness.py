"""Forwards and metadata of a rig whose tensors count as a device's, and the waits that they cost.

A `Counted` runs the release's own code on a CPU in place of a GPU. What its runs give, beside those
of any `Play`:

| run | input | what must be equal |
| --- | --- | --- |
| `metadata` | a batch | each field with its place, and chunk indices with theirs |
| `changed` | one of `UNKNOWN` | as `metadata`, of a batch that it changed on its way |
| `scheduled` | requests | as `metadata`, of a prefill, the decode after it, and a mix |

What is on the device: the rig's states and weights, each tensor of a batch whose name does not end
in ``_cpu``, and whatever is computed from these. What counts as a wait: see `waits.Counter`. Not
counted: what a kernel reads, and the release's scheduler while it makes a batch. `noted` gives the
places that waited in a run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, TypeVar
from unittest import mock

import torch
from torch.utils._pytree import tree_leaves

from sglang_perf_patches.sets.mamba import host
from sglang_perf_patches.verify.comparing import both, require, require_same
from sglang_perf_patches.verify.mamba.cases import Batch, Request
from sglang_perf_patches.verify.mamba.harness import Play, plain
from sglang_perf_patches.verify.mamba.rig import Rig
from tests.proof.mamba import fake_cuda_graph, scheduling, waits

T = TypeVar("T")

Noted = tuple[Any, list[str]]
"""The results of a run that must be equal, and the places that waited."""


@cache
def counter() -> waits.Counter:
    """The one of this process: what kernels read does not count."""
    counter_of_waits = waits.Counter()
    waits.counting_kernels_as_device(counter_of_waits)
    return counter_of_waits


@cache
def counted_gdn() -> Counted:
    return Counted(Rig())


def noted(run: Callable[[T], Any]) -> Callable[[T], Noted]:
    def run_and_note(value: T) -> Noted:
        found = counter().found
        found.clear()
        return run(value), list(found)

    return run_and_note


def alike(
    patch: str,
    run: Callable[[T], Any],
    inputs: Sequence[T],
    *,
    most: int | Callable[[T], int] | None = 0,
) -> int:
    """Run every input on stock and then with a patch; each pair must be equal. How many there were.

    A patched run may wait `most` times, or as often as that says of an input on stock, and stock
    must have waited more often in all; with None the waits say nothing.
    """
    bounds = [most(value) if callable(most) else most for value in inputs]
    spared = 0
    for (value, one, other), bound in zip(both((patch,), noted(run), inputs), bounds, strict=True):
        (expected, stocks_waits), (actual, waits_seen) = one, other
        where = f"{patch}, {value!r}"
        require_same(where, expected, actual)
        allowed = bound is None or len(waits_seen) <= bound
        require(allowed, f"{where}: waits at {', '.join(waits_seen)}")
        spared += len(stocks_waits) - len(waits_seen)
    require(most is None or spared > 0, f"{patch}: stock does not wait for these inputs")
    return len(inputs)


class Counted(Play):
    """A rig on the CPU in place of a GPU."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.counter = counter()
        rig.backend.device = waits.DEVICE
        self.counter.own(*rig.states(), rig.pool.req_index_to_mamba_index_mapping)
        for layer in rig.layers:
            self.counter.own(*tree_leaves([*vars(layer).values(), *layer.parameters()]))
        self.counter.own(*getattr(rig.backend, "tp_slope", ()))

    def own(self, *tensors: Any) -> None:
        self.counter.own(*tensors)

    @contextmanager
    def counting(self) -> Iterator[None]:
        # A lightning-attention kernel asks for the compute capability.
        capability = mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0))
        with self.counter, capability:
            yield

    def placed(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return "on the device" if self.counter.owns(value) else "on the host", plain(value)

    def graphs(self) -> AbstractContextManager[None]:
        return fake_cuda_graph.on_cpu()

    @contextmanager
    def capturing(self, backend: Any) -> Iterator[None]:
        with fake_cuda_graph.capturing(backend):
            yield

    def metadata(self, wanted: Batch) -> dict[str, Any]:
        return self.planned(self.batch(wanted))

    def planned(self, batch: Any) -> dict[str, Any]:
        backend = self.rig.backend
        with self.counting():
            backend.init_forward_metadata(batch)
            start = backend.forward_metadata.query_start_loc
            chunks = [
                function(start, size)
                for function in _chunk_functions()
                for size in (16, 64)
                if start is not None and not batch.forward_mode.is_decode()
            ]
        return {
            "fields": self.fields_of(backend.forward_metadata),
            "chunks": [*map(self.placed, chunks)],
        }

    def changed(self, change: Callable[[Counted, Any], None]) -> dict[str, Any]:
        """As `metadata`, of a batch that something changed on its way."""
        batch = self.batch(CHANGED)
        change(self, batch)
        return self.planned(batch)

    def tracks(self, requests: Sequence[Request]) -> tuple[Any, Any]:
        """What a prefill of the release's scheduler tracks, by its mask and by the host."""
        with self._uncounted():
            _, prefill = scheduling.scheduled(self.rig, requests)
            known = host.prefill(prefill)
            mask = prefill.mamba_track_mask.tolist()
        return mask, known and known.get("mamba_track_mask")

    def scheduled(self, requests: Sequence[Request]) -> list[dict[str, Any]]:
        """As `metadata`, of the release's own scheduler: a prefill, its decode, and a mix."""
        with self._uncounted():
            schedule, prefill = scheduling.scheduled(self.rig, requests)
        first = self._plan_of(prefill)
        if not any(prefill.mamba_track_mask.tolist()):
            raise AssertionError("the scheduler tracks nothing of this batch")
        with self._uncounted():
            decode = scheduling.decoding(self.rig, schedule)
        waited = len(self.counter.found)  # the waits of a decode are stock's
        second = self._plan_of(decode)
        del self.counter.found[waited:]
        with self._uncounted():
            mixed = scheduling.mixed(self.rig, schedule, requests[:2])
        return [first, second, self._plan_of(mixed)]

    @contextmanager
    def _uncounted(self) -> Iterator[None]:
        """Within the counter, for memory can't be pinned here, but not counted."""
        with self.counter, self.counter.paused():
            yield

    def _plan_of(self, batch: Any) -> dict[str, Any]:
        self.own_batch(batch)
        plan = self.planned(batch)
        held = (batch.mamba_track_mask, batch.mamba_track_seqlens)
        return {"plan": plan, "mode": batch.forward_mode.name, "held": plain(held)}


CHANGED = Batch((Request(65), Request(70, 64), Request(9, tracked=False)))


def padded(play: Counted, batch: Any) -> None:
    """Data-parallel padding makes other tensors."""
    for name in ("mamba_track_mask", "mamba_track_seqlens"):
        tensor = getattr(batch, name)
        setattr(batch, name, torch.cat([tensor, tensor.new_zeros(0)]))
        play.counter.own(getattr(batch, name))
    batch.mamba_prefill_track_mask_cpu = None


def tensors(_: Counted, batch: Any) -> None:
    """A synchronised batch has tensors where the lists were."""
    batch.extend_seq_lens_cpu = torch.tensor(batch.extend_seq_lens_cpu)
    batch.extend_prefix_lens_cpu = torch.tensor(batch.extend_prefix_lens_cpu)


def half(_: Counted, batch: Any) -> None:
    """Half of a two-batch overlap."""
    batch.tbo_parent_token_range = (0, CHANGED.tokens)


def relabelled(_: Counted, batch: Any) -> None:
    """Data-parallel padding gave it another mode."""
    batch._original_forward_mode = batch.forward_mode


def split(_: Counted, batch: Any) -> None:
    """A prefill that is split by layers."""
    batch.forward_mode = type(batch.forward_mode).SPLIT_PREFILL


def longer(_: Counted, batch: Any) -> None:
    """A list of another length."""
    batch.extend_prefix_lens_cpu = [*batch.extend_prefix_lens_cpu, 0]


def exchanged(play: Counted, batch: Any) -> None:
    """Somebody exchanged what is tracked."""
    batch.mamba_track_seqlens = batch.mamba_track_seqlens.clone()
    play.counter.own(batch.mamba_track_seqlens)
    batch.mamba_track_seqlens_cpu = None


UNKNOWN = (padded, tensors, half, relabelled, split, longer, exchanged)


def _chunk_functions() -> list[Any]:
    for name in ("sglang.kernels.ops.attention.fla.index", "sglang.srt.layers.attention.fla.index"):
        if name in sys.modules:
            module = sys.modules[name]
            return [module.prepare_chunk_indices, module.prepare_chunk_offsets]
    raise RuntimeError("no FLA index module has been imported")
