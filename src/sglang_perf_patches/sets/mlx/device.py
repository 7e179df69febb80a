"""What MLX's device is, as far as bits depend on it."""

from __future__ import annotations

import os
from typing import Any

CUDNN_ATTENTION = "MLX_CUDA_USE_CUDNN_SDPA"
"""MLX's variable; cuDNN's attention is on unless it is 0."""


def has_cuda(core: Any) -> bool:
    """Whether MLX runs on CUDA; `core` is ``mlx.core``."""
    return hasattr(core, "cuda") and bool(core.cuda.is_available())


def attends_by_cudnn(core: Any) -> bool:
    """Whether a single request may be decoded by cuDNN's attention; `core` is ``mlx.core``."""
    return has_cuda(core) and os.environ.get(CUDNN_ATTENTION, "1") != "0"
