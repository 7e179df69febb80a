"""What the checks of several swa patches share: loads and episodes, on stock and patched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import sglang_perf_patches
from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import live, require, require_same
from tests.proof.swa.cases import admitted, history
from tests.proof.swa.episodes import PAGES, play

LOADS, EPISODES = 4, 2
"""How many are drawn of each."""

PAGED = tuple(page for page in PAGES if page > 1)

Load = dict[str, Any]


def with_room(
    patch: str,
    inputs: Inputs,
    pages: Sequence[int],
    *,
    windows: Sequence[int] = (1, 20, 100, 700),
    ran: bool | None = None,
) -> int:
    """With room for everything, the order of admission and the tokens of each step are stock's."""

    def drawn(random: Random) -> Load:
        prompts = tuple(random.randint(1, 400) for _ in range(random.randint(1, 6)))
        window = random.choice(windows)
        return {"window": window, "page_size": random.choice(pages), "prompts": prompts}

    loads = [*({"window": 100, "page_size": page} for page in pages), *inputs(drawn, LOADS)]
    stock = [history(**load) for load in loads]
    with live_throughout(patch, ran=ran):
        for load, expected in zip(loads, stock, strict=True):
            require_same(f"{patch}, {load}", expected, history(**load))
    return len(loads)


def without_room(patch: str, inputs: Inputs, pages: Sequence[int]) -> int:
    """Without room for everything no fewer are admitted than by stock."""

    def drawn(random: Random) -> Load:
        """Equal prompts of whole pages, which stock prices as it allocates them."""
        page, window = random.choice(pages), random.choice((7, 32, 100, 128))
        prompt = page * random.randint(1, 2000 // page)
        return {
            "window": window,
            "page_size": page,
            "swa_tokens": page * random.randint(1000 // page, 8000 // page),
            "full_tokens": 65536,
            "prompt": prompt,
            "max_new_tokens": random.choice((16, 128, 512)),
            "requests": 24,
        }

    loads = inputs(drawn, LOADS)
    stock = [admitted(**load)["admitted"] for load in loads]
    with live_throughout(patch):
        for load, expected in zip(loads, stock, strict=True):
            actual = admitted(**load)["admitted"]
            require(actual >= expected, f"{patch}, {load}: {actual} admitted, stock {expected}")
    return len(loads)


def random_episodes(patch: str, inputs: Inputs, pages: Sequence[int]) -> int:
    seeds = inputs(lambda random: random.getrandbits(32), EPISODES)
    with live_throughout(patch, ran=None):
        return sum(play(Random(seed), pages) for seed in seeds)


@contextmanager
def live_throughout(patch: str, *, ran: bool | None = True) -> Iterator[None]:
    """As `live`, and none of the servers that are published meanwhile may gate the patch."""
    with live(patch, ran=ran):
        yield
        state = sglang_perf_patches.activate(patch).of(patch)
        require(state.state == "live", f"{patch} is {state.state} by now: {state.reason}")
