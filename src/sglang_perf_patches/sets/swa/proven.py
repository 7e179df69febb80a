"""With which features of a server each swa patch was proven, and by which check.

``verify`` is the patch's own case, played with the feature's arguments in the server that the
process publishes (``tests/releases/test_played.py``).
"""

from collections.abc import Mapping

_EPISODES = "tests/swa/machine.py: play"

_BESIDE = dict.fromkeys(
    (
        *("tensor-parallel", "data-parallel", "no-overlap", "no-cuda-graphs", "priorities"),
        *("lora", "quantised-weights", "deterministic", "forward-metrics"),
    ),
    "verify",
)
"""What goes on beside the pools and the queue."""
_DECODING = {
    **_BESIDE,
    "decode-server": "verify",
    "whole-prefills": "verify",
    "no-radix-cache": "verify",
    "retracted-in-tensors": "verify",
    "pages": _EPISODES,
}
"""A patch that the decode worker of the proof plays: without a radix cache, in both backups."""
_DRAFTS = {"eagle": _EPISODES}
_TREES = {**_DRAFTS, "draft-trees": "tests/swa/checks.py: the_bound_holds_with_drafts"}
_RANKS = {"pipeline": _EPISODES, "dp-attention": _EPISODES}
"""Tails are allocated by each rank for itself, from its own pools."""

PROVEN: Mapping[str, Mapping[str, str]] = {
    # Up to 0.5.11 it leaves pipelines to stock by itself.
    "swa.tail-prealloc": _DECODING | _RANKS | _TREES,
    "swa.page-size-1": _DECODING | _RANKS | _TREES,
    "swa.window-bounded-admission": _DECODING,
    "swa.idle-admission": _DECODING | _TREES,
    "swa.pool-ratio": _BESIDE | {"pages": "verify", "no-radix-cache": "verify"},
    "swa.evict-before-retract": _DECODING | _DRAFTS,
}
"""Patch → feature → check."""
