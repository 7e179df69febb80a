"""Situations in which only stock's code runs instead of the patches of this set."""

from __future__ import annotations

from ...model.patching import Gated, Patching

UTILS = "sglang.srt.utils"
"""To be awaited by every variant of this set."""

_PLATFORMS = (
    ("is_hip", "AMD GPUs (HIP)"),
    ("is_npu", "Ascend NPUs"),
    ("is_xpu", "Intel GPUs"),
    ("is_musa", "Moore Threads GPUs (MUSA)"),
    ("is_cpu", "CPU servers"),
)


def refuse_platforms(patching: Patching) -> None:
    """Gate a patch on platforms whose backends inherit what it changes and run other kernels.

    Raises:
        Gated: this process runs on one of them.
    """
    utils = patching.module(UTILS)
    for ask, name in _PLATFORMS:
        if getattr(utils, ask)():
            raise Gated(f"{name} run other kernels; it was not proven with those")
