"""What stock sglang's speculative backends ask of a GPU machine, lent to them on a CPU.

Only wheels that can't exist here are stood in for: sgl_kernel, flashinfer and the two torchvision
operators that its CPU build lacks. The classes under test, the pools they read and the Triton
kernels they launch are sglang's own; Triton runs them in its interpreter.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

if "MLA_ON_GPU" not in os.environ:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated

import torch

_LENT = ["sgl_kernel", "flashinfer"]


def lend() -> None:
    """Put the stand-ins in place; before sglang is imported."""
    if "MLA_ON_GPU" in os.environ:  # the kit has the wheels, without FlashAttention 3
        _LENT[:] = ["sgl_kernel.flash_attn"]
        sys.meta_path.insert(0, _Finder())
        return
    torch.set_num_threads(1)
    Path.exists = _exists_or_jit  # type: ignore[method-assign]
    sys.meta_path.insert(0, _Finder())
    for operator in ("nms", "qnms"):
        with suppress(RuntimeError):  # the wheel for CUDA defines them
            torch.library.define(
                f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou) -> Tensor"
            )


class Wrapper:
    """In place of flashinfer's attention wrappers: keeps what it was planned with."""

    def __init__(self, *_arguments: Any, **options: Any) -> None:
        """Take any options, as the wrappers of the different flashinfer releases have."""
        self.options = options
        self.is_cuda_graph_enabled = bool(options.get("use_cuda_graph"))
        self.plans: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def begin_forward(self, *arguments: Any, **options: Any) -> None:
        """Keep the arguments as they are at this moment."""
        self.plans.append((_kept(arguments), {k: _kept(v) for k, v in options.items()}))

    plan = begin_forward

    def end_forward(self) -> None:
        """Nothing to release."""


def _kept(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, tuple):
        return tuple(map(_kept, value))
    return value


class _Absent:
    """A kernel, or a table of constants, of a wheel that is not here: can be named, not called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> _Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self._name}.{name}")

    def __call__(self, *_arguments: object, **_options: object) -> None:
        raise NotImplementedError(f"{self._name} is a CUDA kernel")


_exists = Path.exists


def _exists_or_jit(path: Path, *arguments: Any, **options: Any) -> bool:
    """The unpacked release trees have no CUDA sources, whose folders sglang looks for at import."""
    if path.name in {"include", "csrc"} and path.parent.name in {"jit", "jit_kernel"}:
        return True
    return _exists(path, *arguments, **options)


class _Lent(ModuleType):
    """A module in which every name is a kernel that can't run, or a wrapper that keeps plans."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = Wrapper if name.endswith("Wrapper") else _Absent(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class _Finder:
    """Finds the lent modules and whatever is asked for below them."""

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The specification of a lent module."""
        if not any(name == lent or name.startswith(f"{lent}.") for lent in _LENT):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Make the module."""
        module = _Lent(spec.name)
        module.__version__ = "999.0"  # type: ignore[attr-defined]
        module.__path__ = []
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to execute."""
