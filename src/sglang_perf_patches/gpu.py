"""The GPUs of this machine, and the capability of this process's, read without starting CUDA.

If torch has started CUDA, torch tells. Else the driver's management library (NVML) does: it opens
no device and keeps nothing open, so a later fork stays safe.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any, NamedTuple

_OK, _UNKNOWN = 0, "unknown"


class Machine(NamedTuple):
    """What the driver tells of a machine."""

    driver: str  # its version
    kinds: tuple[tuple[str, str], ...]  # name and compute capability of each kind of GPU, sorted

    @property
    def is_known(self) -> bool:
        """Whether the driver told everything, of at least one GPU."""
        told = [self.driver, *(each for kind in self.kinds for each in kind)]
        return bool(self.kinds) and all(told) and _UNKNOWN not in told


def capability() -> str | None:
    """Compute capability of the GPU in use, such as ``9.0``; None if no GPU is found.

    Before CUDA has started, the GPU that will be used is unknown. A machine with several kinds
    then gives all of them: ``8.9, 9.0``.
    """
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if hasattr(cuda, "is_initialized") and cuda.is_initialized():
        return _written(cuda.get_device_capability())
    found = machine()
    return ", ".join(sorted({of_it for _, of_it in found.kinds})) or None if found else None


@functools.cache
def machine() -> Machine | None:
    """What the driver tells of this machine; None without a driver. It is asked once."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if library.nvmlInit_v2() != _OK:
        return None
    try:
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _OK:
            return None
        kinds = {_of_device(library, at) for at in range(count.value)}
        return Machine(_text(library.nvmlSystemGetDriverVersion), tuple(sorted(kinds)))
    finally:
        library.nvmlShutdown()


def _of_device(library: Any, at: int) -> tuple[str, str]:
    device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(at), ctypes.byref(device)) != _OK:
        return _UNKNOWN, _UNKNOWN
    pair = ctypes.byref(major), ctypes.byref(minor)
    found = library.nvmlDeviceGetCudaComputeCapability(device, *pair)
    of_it = _written((major.value, minor.value)) if found == _OK else _UNKNOWN
    return _text(library.nvmlDeviceGetName, device), of_it


def _text(ask: Any, *of: Any) -> str:
    """A text that the library writes into a buffer."""
    buffer = ctypes.create_string_buffer(96)
    found = ask(*of, buffer, ctypes.c_uint(len(buffer)))
    return buffer.value.decode(errors="replace") if found == _OK else _UNKNOWN


def _written(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"
