"""With which features of a server each swa patch was proven, and by which check.

``verify`` is the patch's own case, played with the feature's arguments in the server that the
process publishes (``tests/releases/test_played.py``).
"""

_EPISODES = "tests/swa/machine.py: play"

BESIDE = dict.fromkeys(
    (
        *("tensor-parallel", "data-parallel", "no-overlap", "no-cuda-graphs", "priorities"),
        *("lora", "quantised-weights", "deterministic", "forward-metrics"),
        *("expert-parallel", "expert-all-to-all"),  # no pool, queue or table knows of experts
        "other-gpu",  # pools, queues and tables, which no GPU computes otherwise
    ),
    "verify",
)
"""What goes on beside the pools and the queue."""
DECODING = {
    **BESIDE,
    "decode-server": "verify",
    "two-batch-overlap": "verify",  # it splits a forward, after the queue has its batch
    "whole-prefills": "verify",
    "quantised-kv": "verify",
    "no-radix-cache": "verify",
    "retracted-in-tensors": "verify",
    "pages": _EPISODES,
}
"""A patch that the decode worker of the proof plays: without a radix cache, in both backups."""
TREES = dict.fromkeys(("eagle", "draft-trees"), "tests/swa/checks.py: the_bound_holds_with_drafts")
RANKS = {"pipeline": _EPISODES, "dp-attention": _EPISODES}
"""Tails are allocated by each rank for itself, from its own pools."""
IDLE_RANKS = {"dp-attention": "tests/swa/checks.py: an_idle_rank_is_served"}
POOLED = {
    **dict.fromkeys(("no-overlap", "no-cuda-graphs", "no-radix-cache", "priorities"), "verify"),
    **dict.fromkeys(("mixed-chunks", "pages"), "verify"),
    "no-window-pool": "tests/swa/window_checks.py: both_together",
    "tensor-parallel": "tests/swa/window_rank.py: main",
}
"""A real scheduler with both pools in turn; stock resolves no window pool for these models."""
WINDOWS = {
    **BESIDE,
    **dict.fromkeys(("no-radix-cache", "mixed-chunks", "whole-prefills", "quantised-kv"), "verify"),
    **dict.fromkeys(("pages", "no-window-pool"), "verify"),
}
"""Attention's metadata, which knows lengths, rows and pools, and no more of a server."""
