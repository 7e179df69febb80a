"""What an idle server can serve is served, one request after the other; a busy one is stock's."""

from __future__ import annotations

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import require
from tests.proof.swa.cases import alone_without_limit
from tests.proof.swa.equivalence import PAGED, live_throughout, random_episodes, with_room

PATCH = "swa.idle-admission"

WINDOWS = (20, 100, 700)
"""With a window of one token a request may be expected to hold less than it decodes: the patch then
takes part, though it changes nothing."""


def idle_server(_: Inputs) -> int:
    """Requests without ``max_tokens``, which stock never admits."""
    stock = alone_without_limit(64)
    require(not stock["order"], f"stock admits requests without max_tokens: {stock}")
    with live_throughout(PATCH):
        outcome = alone_without_limit(64)
    require(
        (outcome["first"], outcome["finished"], outcome["refused"]) == (1, 3, 0),
        f"{PATCH}: three requests, one at a time, and {outcome} is what came of them",
    )
    return 1


CHECKS = {
    "with room for everything": lambda inputs: with_room(
        PATCH, inputs, PAGED, windows=WINDOWS, ran=False
    ),
    "an idle server": idle_server,
    "random episodes": lambda inputs: random_episodes(PATCH, inputs, PAGED),
}
