"""Counting, on a CPU, the waits that the same code would cost on a GPU.

Tensors are told apart by provenance: what is made on `DEVICE`, or computed from such a tensor, is
the device's. Whatever moves a value from there to the host, or blocks to move one there, is counted
with the place of sglang's or ours that did it. Where a tensor of the host meets one of the device,
which a GPU refuses, the call raises.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...sets.mamba.host import KnownMask

DEVICE = "cpu:0"
"""A name of the CPU that stands for the GPU: a plain ``cpu`` is the host."""

_DEVICE = torch.device(DEVICE)
_READS = {"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy", "cpu"}
_COUNTED = {"nonzero", "masked_select", "unique", "argwhere"}
_MAKERS = {"tensor", "as_tensor", "new_tensor"}
_INDEXED = {"__getitem__", "__setitem__"}
_METHODS = {"clamp", "clamp_", "clip"}
_SCALARS = {*_METHODS, "arange", "zeros", "empty", "full"}
_MIXES = {"to", "copy_", *_INDEXED}
"""Take tensors of the host and of the device together; with anything else a GPU refuses."""


class Counter(TorchFunctionMode):  # type: ignore[misc]
    """Counts while it is entered."""

    def __init__(self) -> None:
        """Start without a tensor on the device."""
        super().__init__()
        self.found: list[str] = []
        self._ours: dict[int, Any] = {}
        self._paused = False

    def own(self, *tensors: Any) -> None:
        """Say of tensors that they are on the device."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                self._ours[id(tensor)] = tensor  # kept, so that no other gets its id

    def owns(self, value: Any) -> bool:
        """Whether a tensor is on the device."""
        if isinstance(value, KnownMask):  # PyTorch does not show a mode how one is made of a mask
            return True
        return isinstance(value, torch.Tensor) and id(value) in self._ours

    @contextmanager
    def paused(self) -> Iterator[None]:
        """For what runs on the device: a kernel."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count what waits, and say of results whether they are on the device."""
        kwargs = {**(kwargs or {})}
        if kwargs.get("pin_memory"):  # which needs a GPU
            kwargs["pin_memory"] = False
        if self._paused:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        if name == "__get__":
            is_device = getattr(func, "__self__", None) is torch.Tensor.device
            if is_device and self.owns(first):
                return _DEVICE
            result = func(*args, **kwargs)
            return self._keep(result) if self.owns(first) else result
        target = self._target(name, args, kwargs)
        owned = [value for value in tree_leaves((args, kwargs)) if self.owns(value)]
        waits = int(self._waits(name, args, kwargs, owned, target))
        if name in _INDEXED and self.owns(first):
            waits = sum(map(self._waits_for_index, tree_leaves(args[1])))
        if owned and name not in _MIXES and any(map(self._is_on_host, tree_leaves((args, kwargs)))):
            raise AssertionError(f"host and device tensors meet at {_place(name)}")
        if waits:
            self.found += [_place(name)] * waits
        if name == "pin_memory":
            return first
        result = func(*args, **kwargs)
        if name in {"to", "cpu"} and target is not None and target != self.owns(first):
            result = first.clone() if result is first else result
            return self._keep(result) if target else result
        if target is False:
            return result
        return self._keep(result) if owned or target else result

    def _is_on_host(self, value: Any) -> bool:
        """A 0-dim tensor of the CPU is taken as a number everywhere."""
        return isinstance(value, torch.Tensor) and value.dim() > 0 and not self.owns(value)

    def _keep(self, result: Any) -> Any:
        self.own(*tree_leaves(result))
        return result

    def _target(self, name: str, args: Any, kwargs: Any) -> bool | None:
        """Whether the result is asked for on the device, on the host, or wherever."""
        if name == "cpu":
            return False
        asked = [kwargs.get("device"), *(args[1:] if name == "to" else ())]
        for value in asked:
            if isinstance(value, str | torch.device):
                return bool(torch.device(value).index == _DEVICE.index)
            if name == "to" and isinstance(value, torch.Tensor):
                return self.owns(value)
        if name in {"tensor", "as_tensor", *_SCALARS - _METHODS}:
            return False
        return None

    def _waits(
        self, name: str, args: Any, kwargs: Any, owned: list[Any], target: bool | None
    ) -> bool:
        first = args[0] if args else None
        if name in _READS | _COUNTED and self.owns(first):
            return True
        if name == "to" and target is not None and target != self.owns(first):
            return not target or not kwargs.get("non_blocking", False)
        if name in _MAKERS:
            return bool(target) or (name == "new_tensor" and self.owns(first))
        if name in _SCALARS:
            of_self = first if name in _METHODS else None
            return any(value.dim() == 0 for value in owned if value is not of_self)
        if name == "repeat_interleave" and owned:
            return kwargs.get("output_size") is None and len(args) > 1 and self.owns(args[1])
        return False

    def _waits_for_index(self, index: Any) -> int:
        """A mask is counted out; a scalar, or the end of a slice, must be known to make a view."""
        if isinstance(index, slice):
            return self.owns(index.start) + self.owns(index.stop)
        return int(self.owns(index) and (index.dtype == torch.bool or index.dim() == 0))


def counting_kernels_as_device(counter: Counter) -> None:
    """Let Triton's interpreter read what it likes: on a GPU no value leaves the device there."""
    from triton.runtime import interpreter

    run = interpreter.GridExecutor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with counter.paused():
            return run(self, *args, **kwargs)

    interpreter.GridExecutor.__call__ = call


def _place(name: str) -> str:
    for frame in reversed(traceback.extract_stack()):
        if "/sglang" in frame.filename and "/proof/" not in frame.filename:
            return f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {name}"
    return name
