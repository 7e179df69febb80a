"""The mla patches on a CPU, one file each, and what their checks share."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from sglang_perf_patches.verify.mla.rig import CONTEXT

CPU = torch.device("cpu")


class OnCpu(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """Sends what sglang allocates on device "cuda" by name to the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs = {**kwargs, "device": CPU}
        return func(*args, **kwargs)


def some_lengths(random: Random, most: int, *, least: int = 1) -> list[int]:
    """Prefix lengths of `least` to `most` requests, each with 8 tokens to spare."""
    count = random.randint(least, most)
    return [random.randint(1, CONTEXT - 8) for _ in range(count)]
