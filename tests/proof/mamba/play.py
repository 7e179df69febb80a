"""Forwards and metadata of a rig whose tensors count as a device's.

A `Play` runs the release's own code on a CPU in place of a GPU. Each of its runs gives what must be
equal, and the places that waited:

| run | input | what must be equal |
| --- | --- | --- |
| `Play.forwards` | batches that follow each other | outputs of all layers, and all states |
| `Play.metadata` | a batch | each field with its place, and chunk indices with theirs |
| `Play.fields` | a batch | the fields alone: other layers than gated delta nets have no chunks |
| `Play.changed` | one of `UNKNOWN` | as `Play.metadata`, of a batch that it changed on its way |
| `Play.scheduled` | requests | as `Play.metadata`, of a prefill, the decode after it, and a mix |

What is on the device: the rig's states and weights, each tensor of a batch whose name does not end
in ``_cpu``, and whatever is computed from these. What counts as a wait: see `waits.Counter`. Not
counted: what a kernel reads, and the release's scheduler while it makes a batch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import combinations
from typing import Any

import torch

from sglang_perf_patches.sets.mamba import host
from sglang_perf_patches.verify.mamba.cases import Batch, Request
from sglang_perf_patches.verify.mamba.rig import ATTENTION, Rig
from tests.proof.mamba import scheduling, waits
from tests.proof.mamba.alike import Played

METADATA = "sglang.srt.layers.attention.mamba.mamba2_metadata"


@cache
def is_old() -> bool:
    """Whether the release is from before upstream's change."""
    return not hasattr(importlib.import_module(METADATA).ForwardMetadata, "has_mamba_track_mask")


@cache
def counter() -> waits.Counter:
    """The one of this process: what kernels read does not count."""
    counter_of_waits = waits.Counter()
    waits.counting_kernels_as_device(counter_of_waits)
    return counter_of_waits


@cache
def gdn() -> Play:
    """The gated-delta-net rig of this process."""
    return Play(Rig())


def known_batch(rig: Rig, wanted: Batch) -> Any:
    """A ForwardBatch as the scheduler's part of the patches leaves it."""
    batch = rig.batch(wanted)
    requests = wanted.requests
    if wanted.tracking and wanted.mode != "DECODE":
        batch.reqs = requests
        mask = [request.tracked for request in requests]
        host.attach_track(batch, mask, [request.track_seqlen for request in requests])
    return batch


class Play:
    """A rig on the CPU in place of a GPU."""

    def __init__(self, rig: Rig) -> None:
        """Take the rig's tensors for the device's."""
        self.rig = rig
        self.counter = counter()
        rig.backend.device = waits.DEVICE
        self.counter.own(*rig.states(), rig.pool.req_index_to_mamba_index_mapping, *rig.weights())

    def batch(self, wanted: Batch) -> Any:
        """A ForwardBatch as the scheduler's part of the patches leaves it."""
        batch = known_batch(self.rig, wanted)
        self.own(batch)
        return batch

    def own(self, batch: Any) -> None:
        """Say of a batch's tensors that they are on the device, but for those called otherwise."""
        self.counter.own(*(v for k, v in vars(batch).items() if not k.endswith("_cpu")))

    @contextmanager
    def counting(self) -> Iterator[list[str]]:
        """The list is filled at the end."""
        self.counter.found.clear()
        waits_seen: list[str] = []
        with self.counter:
            yield waits_seen
        waits_seen.extend(self.counter.found)

    def forwards(self, batches: Sequence[Batch]) -> Played:
        """Outputs of all layers and all states after forwards on the same random states."""
        self.rig.fill()
        outputs: list[torch.Tensor] = []
        waited: list[str] = []
        for of_layers, waits_seen in self.each(batches):
            outputs += [plain(output) for output in of_layers]
            waited += waits_seen
        if not all(bool(output.isfinite().all()) for output in outputs):
            raise AssertionError(f"outputs of {batches!r} are not finite")
        if any(torch.equal(*pair) for pair in combinations(outputs, 2)):
            raise AssertionError(f"outputs of {batches!r} are the same: nothing is computed")
        return {"outputs": outputs, "states": [plain(held) for held in self.rig.states()]}, waited

    def each(self, batches: Sequence[Batch]) -> Iterator[tuple[list[torch.Tensor], list[str]]]:
        """For each forward the outputs of its layers, and what waited."""
        for seed, wanted in enumerate(batches):
            batch = self.batch(wanted)
            inputs = self.rig.inputs(wanted.tokens, seed)
            self.counter.own(*(tensor for of_layer in inputs for tensor in of_layer.values()))
            with self.counting() as waits_seen:
                outputs = self.rig.forward(batch, inputs)
            yield outputs, waits_seen

    def metadata(self, wanted: Batch) -> Played:
        """Every field of a forward's metadata, and the chunk indices that its layers ask for."""
        return self.planned(self.batch(wanted))

    def planned(self, batch: Any) -> Played:
        """As `metadata`, of a batch that is there."""
        backend = self.rig.backend
        with self.counting() as waits_seen:
            backend.init_forward_metadata(batch)
            start = backend.forward_metadata.query_start_loc
            asks = start is not None and not batch.forward_mode.is_decode()
            chunks = [
                function(start, size)
                for function in _chunk_functions()
                for size in (16, 64)
                if asks
            ]
        plan = {"fields": fields_of(backend.forward_metadata), "chunks": [*map(placed, chunks)]}
        return plan, waits_seen

    def fields(self, wanted: Batch) -> Played:
        """As `metadata`, without the chunk indices."""
        batch = self.batch(wanted)
        with self.counting() as waits_seen:
            self.rig.backend.init_forward_metadata(batch)
        return fields_of(self.rig.backend.forward_metadata), waits_seen

    def changed(self, change: Callable[[Play, Any], None]) -> Played:
        """As `metadata`, of a batch that something changed on its way."""
        batch = self.batch(CHANGED)
        change(self, batch)
        return self.planned(batch)

    def tracks(self, requests: Sequence[Request]) -> tuple[Any, Any]:
        """What a prefill of the release's own scheduler tracks: as its mask has it, and the host.

        None for the host's where it does not know.
        """
        with self._uncounted():
            _, prefill = scheduling.scheduled(self.rig, requests)
            prefill_known = host.prefill(prefill)
            mask = tuple(prefill.mamba_track_mask.tolist())
        return mask, prefill_known and prefill_known.track and prefill_known.track.mask

    def scheduled(self, requests: Sequence[Request]) -> Played:
        """As `metadata`, of batches that the release's own scheduler made.

        A prefill, the decode after it, whose waits are stock's, and one more prefill mixed with
        that decode.
        """
        with self._uncounted():
            schedule, prefill = scheduling.scheduled(self.rig, requests)
        first, of_prefill = self._plan_of(prefill)
        if not any(prefill.mamba_track_mask.tolist()):
            raise AssertionError("the scheduler tracks nothing of this batch")
        with self._uncounted():
            decode = scheduling.decoding(self.rig, schedule)
        second, _ = self._plan_of(decode)
        with self._uncounted():
            mixed = scheduling.mixed(self.rig, schedule, requests[:2])
        third, of_mix = self._plan_of(mixed)
        return [first, second, third], of_prefill + of_mix

    @contextmanager
    def _uncounted(self) -> Iterator[None]:
        """Within the counter, for memory can't be pinned here, but not counted."""
        with self.counter, self.counter.paused():
            yield

    def _plan_of(self, batch: Any) -> Played:
        self.own(batch)
        plan, waits_seen = self.planned(batch)
        held = (batch.mamba_track_mask, batch.mamba_track_seqlens)
        return {"plan": plan, "mode": batch.forward_mode.name, "held": plain(held)}, waits_seen


def fields_of(metadata: Any) -> dict[str, Any]:
    """Its numbers, and its tensors with where they are."""
    return {
        name: placed(value)
        for name, value in vars(metadata).items()
        if isinstance(value, torch.Tensor | bool | int | None)
    }


def placed(value: Any) -> Any:
    """A copy of a tensor and where it is; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return "on the device" if counter().owns(value) else "on the host", plain(value)


def plain(value: Any) -> Any:
    """Copies of tensors, also in lists."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def source_has(module: str, text: str) -> bool:
    """Whether the source of one of the release's attention modules holds a text."""
    attention = attention_module(module)
    if attention is None:
        return False
    with open(attention.__file__, encoding="utf-8") as file:
        return text in file.read()


def attention_module(name: str) -> Any:
    """One of the release's attention modules; None if it has no such module."""
    full = f"{ATTENTION}.{name}"
    try:
        return importlib.import_module(full)
    except ModuleNotFoundError as error:
        if error.name and full.startswith(error.name):
            return None
        raise


def prefills(module: str, *scenarios: tuple[Batch, ...]) -> list[tuple[Batch, ...]]:
    """All of them; only those without tracking where a release's layers track none."""
    tracks = source_has(module, "mamba_track")
    return [batches for batches in scenarios if tracks or not batches[0].tracking]


# -- batches that the host does not know, or not wholly -------------------------------------------

CHANGED = Batch((Request(65), Request(70, 64), Request(9, tracked=False)))


def padded(play: Play, batch: Any) -> None:
    """Data-parallel padding makes other tensors."""
    for name in ("mamba_track_mask", "mamba_track_seqlens"):
        tensor = getattr(batch, name)
        setattr(batch, name, torch.cat([tensor, tensor.new_zeros(0)]))
        play.counter.own(getattr(batch, name))
    batch.mamba_prefill_track_mask_cpu = None


def tensors(_: Play, batch: Any) -> None:
    """A synchronised batch has tensors where the lists were."""
    batch.extend_seq_lens_cpu = torch.tensor(batch.extend_seq_lens_cpu)
    batch.extend_prefix_lens_cpu = torch.tensor(batch.extend_prefix_lens_cpu)


def half(_: Play, batch: Any) -> None:
    """Half of a two-batch overlap."""
    batch.tbo_parent_token_range = (0, CHANGED.tokens)


def relabelled(_: Play, batch: Any) -> None:
    """Data-parallel padding gave it another mode."""
    batch._original_forward_mode = batch.forward_mode


def split(_: Play, batch: Any) -> None:
    """A prefill that is split by layers."""
    batch.forward_mode = type(batch.forward_mode).SPLIT_PREFILL


def longer(_: Play, batch: Any) -> None:
    """A list of another length."""
    batch.extend_prefix_lens_cpu = [*batch.extend_prefix_lens_cpu, 0]


def exchanged(play: Play, batch: Any) -> None:
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
