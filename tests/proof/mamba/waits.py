"""Counting, on a CPU, the waits that the same code would cost on a GPU.

Tensors are told apart by provenance: what is made on `DEVICE`, or computed from such a tensor, is
the device's. Whatever moves a value from there to the host, or blocks to move one there, is counted
with the place of sglang's or ours that did it. A call that a GPU refuses, for a tensor of the host
meets one of the device in it, raises.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

DEVICE = "cpu:0"
"""A name of the CPU that stands for the GPU: a plain ``cpu`` is the host."""

_DEVICE = torch.device(DEVICE)
_READS = {
    *("__bool__", "__int__", "__float__", "__index__", "__array__", "__contains__"),
    *("item", "tolist", "numpy", "cpu", "is_nonzero"),
}
_COUNTED = {
    *("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"),
    *("equal", "allclose"),
}
_MAKERS = {"tensor", "as_tensor"}
_INDEXED = {"__getitem__", "__setitem__", "index_put", "index_put_"}
_METHODS = {"clamp", "clamp_", "clip"}
_SCALARS = {*_METHODS, "arange", "zeros", "empty", "full"}
_COPIES = {"to", "type_as", "copy_"}
_MIXES = {*_COPIES, *_MAKERS, "new_tensor", "view_as", "expand_as", "reshape_as"}
"""Take tensors of the host and of the device together; with anything else a GPU refuses."""
_STRICT = {"cat", "stack", "index_select", "gather", "scatter", "scatter_"}
"""Refuse even a 0-dim tensor of the host, which elsewhere is taken as a number."""


class Counter(TorchFunctionMode):  # type: ignore[misc]
    """Counts while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._ours: dict[int, Any] = {}
        self._pinned: dict[int, Any] = {}
        self._paused = True  # until it is entered

    def __enter__(self) -> Counter:
        self._paused = False
        entered: Counter = super().__enter__()
        return entered

    def __exit__(self, *error: object) -> None:
        self._paused = True
        super().__exit__(*error)

    def own(self, *tensors: Any) -> None:
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                self._ours[id(tensor)] = tensor  # keeps it, so that no other tensor gets its id

    def owns(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and id(value) in self._ours

    def launch(self, kernel: str, *arguments: Any) -> None:
        """Refuse a kernel that is given a tensor of the host."""
        tensors = [value for value in tree_leaves(arguments) if isinstance(value, torch.Tensor)]
        if not self._paused and not all(map(self.owns, tensors)):
            raise _refused(kernel)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """For what runs on the device, as a kernel does, or is not to be counted."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count what waits, and say of results whether they are on the device."""
        kwargs = {**(kwargs or {})}
        if kwargs.get("pin_memory"):  # needs a GPU
            pinned = self.__torch_function__(func, types, args, {**kwargs, "pin_memory": False})
            self._pinned[id(pinned)] = pinned
            return pinned
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        if name == "pin_memory":
            return first
        if self._paused:
            return func(*args, **kwargs)
        if name == "__get__":
            if getattr(func, "__self__", None) is torch.Tensor.device and self.owns(first):
                return _DEVICE
            result = func(*args, **kwargs)
            return self._keep(result) if self.owns(first) else result
        target = self._target(name, args, kwargs)
        leaves = tree_leaves((args, kwargs))
        owned = [value for value in leaves if self.owns(value)]
        if name in _INDEXED:
            waits = self._waits_for_index(name, *args[:3])
        else:
            waits = self._waits(name, args, kwargs, owned, target)
            if owned and name not in _MIXES and any(self._is_apart(name, leaf) for leaf in leaves):
                raise _refused(name)
        if waits:
            self.found += [_place(name)] * waits
        result = func(*args, **kwargs)
        if name in {*_COPIES, "cpu"} and target is not None and target != self.owns(first):
            result = first.clone() if result is first else result
            return self._keep(result) if target else result
        if target is False:
            return result
        return self._keep(result) if owned or target else result

    def _is_apart(self, name: str, value: Any) -> bool:
        is_on_host = isinstance(value, torch.Tensor) and not self.owns(value)
        return is_on_host and (value.dim() > 0 or name in _STRICT)

    def _keep(self, result: Any) -> Any:
        self.own(*tree_leaves(result))
        return result

    def _target(self, name: str, args: Any, kwargs: Any) -> bool | None:
        """Whether the result is asked for on the device, on the host, or wherever."""
        if name == "cpu":
            return False
        if name == "copy_":
            return self.owns(args[0])
        devices = [kwargs.get("device"), *(args[1:] if name in {"to", "type_as"} else ())]
        for value in devices:
            if isinstance(value, str | torch.device):
                return bool(torch.device(value).index == _DEVICE.index)
            if name in _COPIES and isinstance(value, torch.Tensor):
                return self.owns(value)
        if name in _MAKERS:  # a tensor stays where it is
            return self.owns(args[0])
        return False if name in _SCALARS - _METHODS else None

    def _waits(
        self, name: str, args: Any, kwargs: Any, owned: list[Any], target: bool | None
    ) -> int:
        first = args[0] if args else None
        if name in _READS | _COUNTED and self.owns(first):
            return 1
        if name == "where" and len(args) == 1:
            return len(owned)
        if name in _COPIES:
            other = args[1] if name == "copy_" else first
            apart = target is not None and target != self.owns(other)
            can_go_on = target or (name == "copy_" and id(first) in self._pinned)
            return int(apart and not (can_go_on and kwargs.get("non_blocking", False)))
        if name in _MAKERS and isinstance(first, torch.Tensor):
            return int(target != self.owns(first))
        if name in _MAKERS:
            return len(owned) + bool(target)
        if name == "new_tensor":
            return int(self.owns(first))
        if name in _SCALARS:
            of_self = first if name in _METHODS else None
            return int(any(value.dim() == 0 for value in owned if value is not of_self))
        if name == "repeat_interleave" and owned:
            has_size = kwargs.get("output_size") is not None
            return int(not has_size and len(args) > 1 and self.owns(args[1]))
        return 0

    def _waits_for_index(self, name: str, held: Any, index: Any, value: Any = None) -> int:
        """Of a read or, with a value, a write of a part of a tensor.

        A mask is counted out; a scalar, or the end of a slice, must be known to make a view; an
        index of the host is brought to the device first.
        """
        on_device = self.owns(held)
        waits = 0
        selects = False
        for part in index if isinstance(index, tuple) else (index,):
            if isinstance(part, slice):
                waits += self.owns(part.start) + self.owns(part.stop)
            elif self.owns(part) and part.dim() > 0:
                if not on_device:
                    raise _refused(name)
                waits += part.dtype == torch.bool
                selects = True
            elif isinstance(part, list) or (isinstance(part, torch.Tensor) and part.dim() > 0):
                waits += on_device
                selects = True
            else:
                waits += self.owns(part)
        if isinstance(value, torch.Tensor) and self.owns(value) != on_device:
            if selects and value.dim() > 0:
                raise _refused(name)
            is_filled = on_device and value.dim() == 0 and not selects and held[index].dim() > 0
            waits += not is_filled
        return waits


def counting_kernels_as_device(counter: Counter) -> None:
    """Let Triton's interpreter read its input: on a GPU no value leaves the device there."""
    from triton.runtime import interpreter

    run = interpreter.GridExecutor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        counter.launch(self.fn.__name__, args, kwargs)
        with counter.paused():
            return run(self, *args, **kwargs)

    interpreter.GridExecutor.__call__ = call


def _refused(name: str) -> AssertionError:
    return AssertionError(f"host and device tensors meet at {_place(name)}")


def _place(name: str) -> str:
    for frame in reversed(traceback.extract_stack()):
        if "/sglang" in frame.filename and "/proof/" not in frame.filename:
            return f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {name}"
    return name
