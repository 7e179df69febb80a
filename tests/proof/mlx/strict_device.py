"""A stand-in for ``mps`` on a machine without one: it refuses operands of another device.

Its tensors are CPU tensors of a class of their own. What mixes them with others raises, as on a
Mac; copies from one device to the other work.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

MADE = (torch.empty, torch.full, torch.zeros, torch.ones)
_COPIES = (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.copy_)


class OnMps(torch.Tensor):  # type: ignore[misc]
    """A tensor of the device."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        if func is torch.Tensor.device.__get__:
            return torch.device("mps")
        # A number may be on the CPU.
        others = [each for each in tensors if not isinstance(each, OnMps) and each.dim()]
        if func not in _COPIES and others:
            raise RuntimeError(f"{func.__name__}: tensors are on mps and on {others[0].device}")
        result = super().__torch_function__(func, types, args, kwargs)
        if func is torch.Tensor.cpu or (func is torch.Tensor.to and "cpu" in map(str, args)):
            return result.as_subclass(torch.Tensor)
        return result


class Mps(TorchFunctionMode):  # type: ignore[misc]
    """Makes the tensors that are asked for on ``mps``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in MADE and str(kwargs.get("device")).startswith("mps"):
            return func(*args, **{**kwargs, "device": "cpu"}).as_subclass(OnMps)
        return func(*args, **kwargs)
