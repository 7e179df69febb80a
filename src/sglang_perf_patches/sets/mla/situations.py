"""Situations in which the patches of this set leave the work to stock sglang."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ...model.patching import Gated, Patching

UTILS = "sglang.srt.utils"
"""To be awaited by every variant whose install function calls `refuse_platforms`."""

_PLATFORMS = (
    ("is_hip", "AMD GPUs (HIP)"),
    ("is_npu", "Ascend NPUs"),
    ("is_xpu", "Intel GPUs"),
    ("is_musa", "Moore Threads GPUs (MUSA)"),
)


def refuse_platforms(patching: Patching) -> None:
    """Gate a patch on accelerators whose kernels it was not proven with.

    Raises:
        Gated: this process runs on one of them.
    """
    utils = patching.module(UTILS)
    for ask, name in _PLATFORMS:
        if getattr(utils, ask)():
            raise Gated(f"{name} run other kernels")


class Served:
    """Whether this server is in a situation that a patch serves: judged at the first question.

    The answer can't be had when the patch goes live, because sglang publishes the server's
    arguments later.
    """

    def __init__(
        self, patching: Patching, reason_not: Callable[[Any], str | None] | None = None
    ) -> None:
        """Judge by `unserved`, then by `reason_not`; both are given the server's arguments."""
        self._gate = patching.gate
        self._more = reason_not
        self._answer: bool | None = None

    def __call__(self) -> bool:
        """Whether the patch may act; where not, the patch says why, once."""
        if self._answer is None:
            arguments = server_arguments()
            reason = unserved(arguments) or (self._more(arguments) if self._more else None)
            if reason:
                self._gate(reason)
            self._answer = reason is None
        return self._answer


def unserved(arguments: Any) -> str | None:
    """Why no patch of this set acts on a server with these arguments; None where it may."""
    if arguments.enable_two_batch_overlap:
        return "two-batch overlap splits the metadata of a batch between two backends"
    if (arguments.speculative_algorithm or "").upper() == "NGRAM":
        return "ngram speculation builds its own masks and needs the lengths on the host"
    if arguments.pp_size > 1:
        return "pipeline parallelism verifies in other processes than it drafts in"
    if getattr(arguments, "enable_unified_memory", False):
        return "the unified memory pool translates addresses while metadata is built"
    if (getattr(arguments, "dcp_size", 1) or 1) > 1:
        return "decode context parallelism shards the KV cache"
    return None


def server_arguments() -> Any:
    """The arguments of this process's server, as its release publishes them.

    From 0.5.19 on these are what the user gave, a name in small letters too: what sglang makes of
    them is held elsewhere. So ask for nothing here that it resolves.
    """
    context = sys.modules.get("sglang.srt.runtime_context")
    if hasattr(context, "get_server_args"):
        return context.get_server_args()  # type: ignore[union-attr]
    return sys.modules["sglang.srt.server_args"].get_global_server_args()
