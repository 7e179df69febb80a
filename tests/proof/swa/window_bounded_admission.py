"""What a request may generate does not keep it out."""

from __future__ import annotations

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import require
from tests.proof.swa.alike import PAGED, live_throughout, random_episodes, with_room
from tests.proof.swa.cases import admitted

PATCH = "swa.window-bounded-admission"

LOAD = {"window": 128, "page_size": 64, "swa_tokens": 4096, "full_tokens": 1_048_576}
LENGTHS = (128, 3072, 4096, 8000)
"""Of ``max_new_tokens``."""


def any_length(_: Inputs) -> int:
    """As many requests are admitted whatever they may generate."""
    with live_throughout(PATCH):
        for new in LENGTHS:
            outcome = admitted(**LOAD, prompt=1000, max_new_tokens=new)
            require(
                (outcome["admitted"], outcome["refused"]) == (20, 0),
                f"{PATCH}, max_new_tokens {new}: 20 requests fit, and {outcome} is what came of it",
            )
    return len(LENGTHS)


CHECKS = {
    "with room for everything": lambda inputs: with_room(PATCH, inputs, PAGED),
    "any max_new_tokens": any_length,
    "random episodes": lambda inputs: random_episodes(PATCH, inputs, PAGED, drafts=False),
}
