"""What this machine lacks for a patch to have any effect, found without importing it."""

from __future__ import annotations

import glob
import importlib.util

from ..model.patch import Patch

GPU, MLX = "a GPU", "mlx"
_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dri/renderD*", "/dev/davinci*", "/dev/dxg")
_OF_SET = {"mlx": MLX, "mla": GPU, "mamba": GPU}


def missing_device(patch: Patch) -> str:
    """What a patch needs to have an effect and this machine lacks; "" if it lacks nothing."""
    what = _OF_SET.get(patch.set)
    return "" if what is None or has(what) else what


def has(what: str) -> bool:
    """Whether there is a `GPU` that sglang may run on, or whether a module is installed."""
    if what == GPU:
        return any(glob.glob(pattern) for pattern in _DEVICES)
    try:
        return importlib.util.find_spec(what) is not None
    except (ImportError, ValueError):
        return False
