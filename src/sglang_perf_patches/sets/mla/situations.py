"""Situations in which stock's code runs instead of the patches of this set.

Each patch names those that its own work can be wrong in, and no others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ...model.patching import Gated, Patching

UTILS = "sglang.srt.utils"
"""To be awaited by every variant whose install function calls `refuse_platforms`."""

Reason = Callable[[Any], str | None]
"""Why a patch does not act on a server with these arguments; None if it may."""

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

    def __init__(self, patching: Patching, *reasons: Reason) -> None:
        """Judge by `reasons`, which get the server's arguments, in this order."""
        self._gate = patching.gate
        self._reasons = reasons
        self._answer: bool | None = None

    def __call__(self) -> bool:
        """Whether the patch may act; if not, it logs why, once."""
        if self._answer is None:
            arguments = server_arguments()
            said = (reason(arguments) for reason in self._reasons)
            found = next((reason for reason in said if reason), None)
            if found:
                self._gate(found)
            self._answer = found is None
        return self._answer


def two_batch_overlap(arguments: Any) -> str | None:
    """For what a target's backend does: the draft's is never split."""
    if arguments.enable_two_batch_overlap:
        return "two-batch overlap splits the metadata of a target's batch between two backends"
    return None


def ngram(arguments: Any) -> str | None:
    """For patches of a tree's mask and of a target's arguments."""
    if (arguments.speculative_algorithm or "").upper() == "NGRAM":
        return "ngram speculation builds its own masks and needs the lengths on the host"
    return None


def pipelined(arguments: Any) -> str | None:
    """For what passes from the draft to the verify, and for the lengths that the host has."""
    if arguments.pp_size > 1:
        return "pipeline parallelism verifies and drafts in different processes"
    return None


def unified_memory(arguments: Any) -> str | None:
    """For tables and indices of the KV cache."""
    if getattr(arguments, "enable_unified_memory", False):
        return "the unified memory pool translates addresses while metadata is built"
    return None


def sharded_context(arguments: Any) -> str | None:
    """For tables, indices and lengths of the KV cache."""
    if (getattr(arguments, "dcp_size", 1) or 1) > 1:
        return "decode context parallelism shards the KV cache"
    return None


VERIFY: tuple[Reason, ...] = (two_batch_overlap, ngram, pipelined, unified_memory, sharded_context)
"""For patches of a verify, or of more than a draft."""

DRAFT_TABLES: tuple[Reason, ...] = (unified_memory, sharded_context)
"""For patches of tables that are built on the device, from what one backend has."""


def one_scale(model_config: Any) -> bool:
    """Whether a model's activations may be quantised with one scale over all rows of a batch.

    Such a scale depends on the rows that only pad a replayed graph, so nothing that changes what
    they hold gives the same values. Only unquantised models and FP8 with a scale for each block of
    a row are known to have none.
    """
    if not getattr(model_config, "quantization", None):
        return False
    found = getattr(model_config.hf_config, "quantization_config", None)
    blocks = found if isinstance(found, dict) else vars(found) if found is not None else {}
    return not blocks.get("weight_block_size")


def server_arguments() -> Any:
    """The arguments of this process's server, as its release publishes them.

    From 0.5.19 on these are what the user gave, a name in small letters too: what sglang makes of
    them is held elsewhere. So ask for nothing here that it resolves.
    """
    context = sys.modules.get("sglang.srt.runtime_context")
    if hasattr(context, "get_server_args"):
        return context.get_server_args()  # type: ignore[union-attr]
    return sys.modules["sglang.srt.server_args"].get_global_server_args()
