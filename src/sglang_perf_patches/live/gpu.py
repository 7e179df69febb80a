"""The compute capability of this process's GPU, read without starting CUDA.

If torch has started CUDA, torch tells. Else the driver's management library (NVML) does: it opens
no device and keeps nothing open, so a later fork stays safe.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_OK = 0


def capability() -> str | None:
    """Compute capability of the GPU in use, such as ``9.0``; None if no GPU is found.

    Before CUDA has started, the GPU that will be used is unknown. A machine with several kinds
    then gives all of them: ``8.9, 9.0``.
    """
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if hasattr(cuda, "is_initialized") and cuda.is_initialized():
        return _written(cuda.get_device_capability())
    return _of_machine()


@functools.cache
def _of_machine() -> str | None:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    if library.nvmlInit_v2() != _OK:
        return None
    try:
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _OK:
            return None
        return ", ".join(sorted({_of_device(library, at) for at in range(count.value)})) or None
    finally:
        library.nvmlShutdown()


def _of_device(library: Any, at: int) -> str:
    device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    found = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(at), ctypes.byref(device))
    if found == _OK:
        found = library.nvmlDeviceGetCudaComputeCapability(
            device, ctypes.byref(major), ctypes.byref(minor)
        )
    return _written((major.value, minor.value)) if found == _OK else "unknown"


def _written(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"
