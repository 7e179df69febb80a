"""What MLX's device is, as far as bits depend on it, and whether two arrays have the same bits."""

from __future__ import annotations

import os
from typing import Any

CUDNN_ATTENTION = "MLX_CUDA_USE_CUDNN_SDPA"  # of MLX: cuDNN's attention is on unless it is 0


def has_cuda(core: Any) -> bool:
    """Whether MLX runs on CUDA; `core` is ``mlx.core``."""
    return hasattr(core, "cuda") and bool(core.cuda.is_available())


def on_cpu(core: Any) -> bool:
    """Whether MLX runs on a CPU; `core` is ``mlx.core``."""
    return bool(core.default_device() == core.Device(core.cpu))


def is_proven(core: Any) -> bool:
    """Whether equal logits are proven on MLX's device: yes on CPUs and CUDA, not on Metal."""
    return on_cpu(core) or has_cuda(core)


def attends_by_cudnn(core: Any) -> bool:
    """Whether a single request may be decoded by cuDNN's attention; `core` is ``mlx.core``."""
    return has_cuda(core) and os.environ.get(CUDNN_ATTENTION, "1") != "0"


def equal_bits(core: Any, one: Any, other: Any) -> Any:
    """Whether two arrays are equal in shape, dtype and every bit: an unevaluated bool array."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return core.array(False)
    words = {1: core.uint8, 2: core.uint16, 4: core.uint32}[one.dtype.size]
    return core.array_equal(one.view(words), other.view(words))
