"""Forwards of a rig, and comparing them: on a GPU as they are, on a CPU as the tests play it.

Each of a `Play`'s runs gives what must be equal, and the places that waited for the device:

| run | input | what must be equal |
| --- | --- | --- |
| `Play.forwards` | batches that follow each other | outputs of all layers, and all states |
| `Play.fields` | a batch | each field of its metadata, with its place |

Only the tests count waits, on a CPU, where they put a `Play` that does into `KINDS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from itertools import combinations
from typing import Any, TypeVar

import torch

from ...sets.mamba import host
from .. import stock
from ..comparing import both, require, require_same
from .cases import Batch
from .rig import ATTENTION, ON_GPU, SMALL, Rig

T = TypeVar("T")

Played = tuple[Any, list[str]]
"""The results of a run that must be equal, and the places that waited."""

METADATA = "sglang.srt.layers.attention.mamba.mamba2_metadata"


@cache
def is_old() -> bool:
    """Whether the release is from before upstream's change."""
    return not hasattr(importlib.import_module(METADATA).ForwardMetadata, "has_mamba_track_mask")


def of(rig: Rig) -> Play:
    """A rig as this process runs it."""
    return KINDS[-1](rig)


@cache
def gdn() -> Play:
    """The gated-delta-net rig of this process."""
    device = stock.device()
    return of(Rig(ON_GPU if device == "cuda" else SMALL, device))


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
    """A rig on a GPU."""

    counts = False
    """Whether it counts what waits."""

    def __init__(self, rig: Rig) -> None:
        """Take a rig."""
        self.rig = rig

    def batch(self, wanted: Batch) -> Any:
        """A ForwardBatch as the scheduler's part of the patches leaves it."""
        batch = known_batch(self.rig, wanted)
        self.own_batch(batch)
        return batch

    def own_batch(self, batch: Any) -> None:
        """Say of a batch's tensors that they are on the device, but for those called otherwise."""
        self.own(*(v for k, v in vars(batch).items() if not k.endswith("_cpu")))

    # -- what the tests have of their own ---------------------------------------------------------

    def own(self, *tensors: Any) -> None:
        """Say of tensors that they are on the device."""

    @contextmanager
    def counting(self) -> Iterator[list[str]]:
        """The list has the places that waited, at the end."""
        yield []

    def placed(self, value: Any) -> Any:
        """A copy of a tensor and where it is; anything else as it is."""
        return (value.device.type, plain(value)) if isinstance(value, torch.Tensor) else value

    def loading(self, batch: Batch) -> AbstractContextManager[None]:
        """Within, states of cached prefixes are still to be loaded from the host."""
        return nullcontext()

    def graphs(self) -> AbstractContextManager[None]:
        """Within, graphs can be replayed."""
        return nullcontext()

    def capturing(self, backend: Any) -> AbstractContextManager[None]:
        """Within, a breakable backend captures."""
        return _on_a_stream(backend)

    # -- runs -------------------------------------------------------------------------------------

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
            self.own(*(tensor for of_layer in inputs for tensor in of_layer.values()))
            with self.counting() as waits_seen:
                outputs = self.rig.forward(batch, inputs)
            yield outputs, waits_seen

    def fields(self, wanted: Batch) -> Played:
        """Every field of a forward's metadata."""
        batch = self.batch(wanted)
        with self.counting() as waits_seen:
            self.rig.backend.init_forward_metadata(batch)
        return self.fields_of(self.rig.backend.forward_metadata), waits_seen

    def fields_of(self, metadata: Any) -> dict[str, Any]:
        """Its numbers, and its tensors with where they are."""
        return {
            name: self.placed(value)
            for name, value in vars(metadata).items()
            if isinstance(value, torch.Tensor | bool | int | None)
        }


@contextmanager
def _on_a_stream(backend: Any) -> Iterator[None]:
    """A capture can't be on the default stream; what it warms up with must be done before."""
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), backend.capture_session(stream):
        yield
    torch.cuda.synchronize()


KINDS: list[type[Play]] = [Play]
"""The last runner of a rig in this process."""


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


def alike(
    patches: Sequence[str],
    run: Callable[[T], Played],
    inputs: Sequence[T],
    *,
    most: int | Callable[[T], int] | None = 0,
) -> int:
    """Run every input on stock and then with patches; each pair must be equal.

    Args:
        patches: ids of those that are live together.
        run: gives what must be equal, and what waited.
        inputs: at least one.
        most: how often a patched run may wait, or what tells that of an input on stock; None if
            that says nothing. Otherwise stock must have waited more often in all. Only where waits
            are counted.

    Returns:
        how many pairs were compared.

    Raises:
        Different: two results differ, or a patched run waited too often.
    """
    if not KINDS[-1].counts:
        most = None
    names = ", ".join(patches)
    bounds = [most(value) if callable(most) else most for value in inputs]
    spared = 0
    for (value, one, other), bound in zip(both(patches, run, inputs), bounds, strict=True):
        (expected, stocks_waits), (actual, waits) = one, other
        where = f"{names}, {value!r}"
        require_same(where, expected, actual)
        allowed = bound is None or len(waits) <= bound
        require(allowed, f"{where}: waits at {', '.join(waits)}")
        spared += len(stocks_waits) - len(waits)
    require(most is None or spared > 0, f"{names}: stock does not wait for these inputs")
    return len(inputs)
