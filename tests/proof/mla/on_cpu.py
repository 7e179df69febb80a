"""In place of the GPU that sglang names where it allocates."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class OnCpu(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """Sends what sglang allocates on device "cuda" by name to the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs = {**kwargs, "device": CPU}
        return func(*args, **kwargs)
