"""What this machine lacks for a patch to have any effect, found without importing it."""

from __future__ import annotations

import glob
import importlib.util

from ..model.patch import Patch

_GPU = "a GPU"
_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dri/renderD*", "/dev/davinci*", "/dev/dxg")
_OF_SET = {"mlx": ("mlx",), "mla": (_GPU,), "mamba": (_GPU,), "swa": ()}


def needs(patch: Patch) -> tuple[str, ...]:
    """What a patch needs to have an effect: modules, or ``a GPU``."""
    with_flashinfer = ("flashinfer",) if "flashinfer" in patch.id else ()
    return (*_OF_SET.get(patch.set, ()), *with_flashinfer)


def has_gpu() -> bool:
    """Whether there is a GPU that sglang may run on."""
    return _has(_GPU)


def has_mlx() -> bool:
    """Whether MLX is installed."""
    return _has("mlx")


def lacking(patch: Patch) -> list[str]:
    """The `needs` of a patch that this machine lacks."""
    return [what for what in needs(patch) if not _has(what)]


def _has(what: str) -> bool:
    if what == _GPU:
        return any(glob.glob(pattern) for pattern in _DEVICES)
    try:
        return importlib.util.find_spec(what) is not None
    except (ImportError, ValueError):
        return False
