"""What stock sglang asks of a GPU machine, lent to it on a CPU.

Only what can't exist here is stood in for: sgl_kernel and flashinfer, two torchvision operators
that its CPU build lacks, the sources of JIT kernels that are never compiled, and features of Triton
that its interpreter has under another name. The code under test, the pools and the Triton kernels
are sglang's own.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated

import torch
import triton
import triton.language as tl
from standins import StandIns, lend_configurations


def lend() -> None:
    """Put the stand-ins in place; before sglang is imported."""
    torch.set_num_threads(1)
    sys.meta_path.insert(0, StandIns(("sgl_kernel", "flashinfer")))
    for operator in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):
            torch.library.define(
                f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou) -> Tensor"
            )
    _lend_kernel_sources()
    _lend_triton()
    lend_configurations()


def _lend_kernel_sources() -> None:
    """A module of sglang wants to see the folders of its C++ sources when it is imported."""
    exists = pathlib.Path.exists

    def seen(self: pathlib.Path, **options: Any) -> bool:
        if self.name in {"include", "csrc"} and "sglang" in self.parts:
            return True
        return exists(self, **options)

    pathlib.Path.exists = seen  # type: ignore[method-assign]


def _lend_triton() -> None:
    """Triton's interpreter knows no device context, and tries every configuration it is given."""
    torch.cpu.device = lambda *_: contextlib.nullcontext()  # type: ignore[attr-defined]
    autotune = triton.autotune

    def first_only(configs: list[Any], *arguments: Any, **options: Any) -> Any:
        return autotune(configs[:1], *arguments, **options)

    triton.autotune = first_only
    tl.exp, tl.log, tl.log2, tl.math.exp2 = _exp, _log, _log2, _exp2


# The interpreter exchanges Triton's functions while a kernel runs. sglang keeps some under names of
# its own, which that does not reach: such a name must hold a function that looks them up.


@triton.jit
def _exp(x):  # type: ignore[no-untyped-def]
    return tl.math.exp(x)


@triton.jit
def _log(x):  # type: ignore[no-untyped-def]
    return tl.math.log(x)


@triton.jit
def _log2(x):  # type: ignore[no-untyped-def]
    return tl.math.log2(x)


@triton.jit
def _exp2(x):  # type: ignore[no-untyped-def]
    return tl.exp2(x)
