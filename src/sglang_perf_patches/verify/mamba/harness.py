"""Forwards of a rig, and what of them must be equal."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from itertools import combinations
from typing import Any

import torch

from ..prefill_graphs import capturing
from .cases import Batch
from .rig import ATTENTION, Rig


class Play:
    """A rig on a GPU."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    def batch(self, wanted: Batch) -> Any:
        """A ForwardBatch as the scheduler makes it."""
        batch = self.rig.batch(wanted)
        self.own_batch(batch)
        return batch

    def own_batch(self, batch: Any) -> None:
        """Say of a batch's tensors that they are on the device, but for those called otherwise."""
        self.own(*(v for k, v in vars(batch).items() if not k.endswith("_cpu")))

    # -- what the tests have of their own, in place of a GPU --------------------------------------

    def own(self, *tensors: Any) -> None:
        """Say of tensors that they are on the device."""

    def counting(self) -> AbstractContextManager[Any]:
        """Within, what waits for the device counts."""
        return nullcontext()

    def placed(self, value: Any) -> Any:
        """A copy of a tensor and where it is; anything else as it is."""
        return (value.device.type, plain(value)) if isinstance(value, torch.Tensor) else value

    def graphs(self) -> AbstractContextManager[None]:
        """Within, graphs can be replayed."""
        return nullcontext()

    def capturing(self, backend: Any) -> AbstractContextManager[None]:
        """Within, a breakable backend captures."""
        return capturing(backend)

    def forwards(self, batches: Sequence[Batch]) -> dict[str, Any]:
        """Outputs of all layers and all states after forwards on the same random states."""
        self.rig.fill()
        outputs = self.outputs(batches)
        if not all(bool(output.isfinite().all()) for output in outputs):
            raise AssertionError(f"outputs of {batches!r} are not finite")
        require_apart(outputs, batches)
        return {"outputs": outputs, "states": plain(self.rig.states())}

    def outputs(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """Outputs of all layers."""
        outputs: list[torch.Tensor] = []
        for seed, wanted in enumerate(batches):
            batch = self.batch(wanted)
            inputs = self.rig.inputs(wanted.tokens, seed)
            self.own(*(tensor for of_layer in inputs for tensor in of_layer.values()))
            with self.counting():
                of_layers = self.rig.forward(batch, inputs)
            outputs += plain(of_layers)
        return outputs

    def fields(self, wanted: Batch) -> dict[str, Any]:
        """Every field of a forward's metadata."""
        batch = self.batch(wanted)
        with self.counting():
            self.rig.backend.init_forward_metadata(batch)
        return self.fields_of(self.rig.backend.forward_metadata)

    def fields_of(self, metadata: Any) -> dict[str, Any]:
        """Its numbers, and its tensors with where they are."""
        kinds = torch.Tensor | bool | int | None
        fields = vars(metadata).items()
        return {name: self.placed(value) for name, value in fields if isinstance(value, kinds)}


def require_apart(outputs: Sequence[torch.Tensor], wanted: Any) -> None:
    """See that no two outputs are the same, as if nothing was computed."""
    if any(torch.equal(*pair) for pair in combinations(outputs, 2)):
        raise AssertionError(f"outputs of {wanted!r} are the same: nothing is computed")


def plain(value: Any) -> Any:
    """Copies of tensors, also in lists."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def source_has(module: str, text: str) -> bool:
    """Whether one of the release's attention modules is there, and its source holds a text."""
    name = f"{ATTENTION}.{module}"
    if find_spec(name) is None:
        return False
    return text in inspect.getsource(importlib.import_module(name))


def prefills(module: str, *scenarios: tuple[Batch, ...]) -> list[tuple[Batch, ...]]:
    """All of them; only those without tracking where a release's layers track none."""
    tracks = source_has(module, "mamba_track")
    return [batches for batches in scenarios if tracks or not batches[0].tracking]
