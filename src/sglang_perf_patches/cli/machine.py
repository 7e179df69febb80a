"""What this machine lacks for a patch to have any effect, found without importing it."""

from __future__ import annotations

import glob
import importlib.util

from ..model.patch import Patch

_GPU = "a GPU"
_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dri/renderD*", "/dev/davinci*", "/dev/dxg")
_OF_SET = {"mlx": ("mlx",), "mla": (_GPU,), "mamba": (_GPU,), "swa": ()}


def has_gpu() -> bool:
    """Whether there is a GPU that sglang may run on."""
    return _has(_GPU)


def has_mlx() -> bool:
    """Whether MLX is installed."""
    return _has("mlx")


def lacking(patch: Patch) -> list[str]:
    """What a patch needs to have an effect and this machine lacks: modules, or ``a GPU``."""
    return [what for what in _OF_SET.get(patch.set, ()) if not _has(what)]


def _has(what: str) -> bool:
    if what == _GPU:
        return any(glob.glob(pattern) for pattern in _DEVICES)
    try:
        return importlib.util.find_spec(what) is not None
    except (ImportError, ValueError):
        return False
