"""What the proofs of the swa set share; what each of them compares."""

from __future__ import annotations

import logging

from .. import Case, lent

_IF_ALL_FITS = "order and steps if everything fits"
_EPISODES = "the KV of random episodes"

CASES = tuple(
    Case(patch=f"swa.{name}", what=", ".join(what))
    for name, what in {
        "tail-prealloc": (_IF_ALL_FITS, "admission in order and no fewer", _EPISODES),
        "page-size-1": (_IF_ALL_FITS, "admission in order and no fewer", _EPISODES),
        "idle-admission": (
            *(_IF_ALL_FITS, "requests without max_tokens on an idle server", _EPISODES),
        ),
        "window-bounded-admission": (
            *(_IF_ALL_FITS, "admission whatever max_new_tokens is", _EPISODES),
        ),
        "evict-before-retract": (
            *(_IF_ALL_FITS, "all tokens of a load that is retracted", _EPISODES),
        ),
        "window-pool": (
            *("tokens and logits of real models beside the full pool", "the pools at the end"),
        ),
        "pool-ratio": ("pools of random budgets and stock's own at the same ratio",),
        "eviction-heap": (
            *("which leaves go and in which order", "the slots that requests get"),
            "what is left of full prefix caches of random episodes",
        ),
        "window-metadata": (
            *("what Triton attention is told of windows", "all of a graph's buffer"),
            "what it computes",
        ),
    }.items()
)


def prepare() -> None:
    """Make this process fit for the checks, before sglang is imported."""
    lent.lend()
    logging.getLogger("sglang").setLevel(logging.CRITICAL)  # about intended refusals
