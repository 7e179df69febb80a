"""Each swa patch beside stock, over sglang's own queue, pools, allocators and batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from .. import Inputs
from ..comparing import differs, live
from .episodes import PAGES, play
from .loads import admitted, history, pressed
from .witness import must

LOADS, EPISODES = 4, 2
"""How many are drawn of each."""

PAGED = tuple(page for page in PAGES if page > 1)

Load = dict[str, Any]


def tail_prealloc(inputs: Inputs) -> int:
    """``swa.tail-prealloc``, at page sizes above 1."""
    return _exact("swa.tail-prealloc", inputs, PAGED)


def page_size_1(inputs: Inputs) -> int:
    """``swa.page-size-1``, at page size 1."""
    return _exact("swa.page-size-1", inputs, (1,))


def window_bounded_admission(inputs: Inputs) -> int:
    """``swa.window-bounded-admission``: what a request may generate does not keep it out."""
    patch = "swa.window-bounded-admission"
    load = {"window": 128, "page_size": 64, "swa_tokens": 4096, "full_tokens": 1_048_576}
    lengths = (128, 3072, 4096, 8000)
    same = _histories(inputs, PAGED)
    with live(patch):
        count = same(patch)
        for new in lengths:
            found = admitted(**load, prompt=1000, max_new_tokens=new)
            must(
                (found["admitted"], found["refused"]) == (20, 0),
                f"{patch}, max_new_tokens {new}: 20 requests fit, and {found} is what came of it",
            )
        return count + len(lengths) + _episodes(inputs, PAGED)


def evict_before_retract(inputs: Inputs) -> int:
    """``swa.evict-before-retract``: fewer retractions, and every token of every request."""
    patch = "swa.evict-before-retract"
    loads = ((16, 1, 420), (32, 1, 440), (32, 1, 520))
    same = _histories(inputs, PAGES)
    # On stock alone, whose pools other patches of the set mend.
    stock = [pressed(*load, watched=False) for load in loads]
    with live(patch, ran=False):
        count = same(patch)
    with live(patch):
        for load, expected in zip(loads, stock, strict=True):
            found = pressed(*load)
            all_there = found["finished"] == expected["finished"] == 12
            must(all_there, f"{patch}, {load}: {found}, stock {expected}")
            fewer = found["retractions"] < expected["retractions"]
            must(fewer, f"{patch}, {load}: not fewer retractions: {found}, stock {expected}")
        return count + len(loads) + _episodes(inputs, (1,))


def _exact(patch: str, inputs: Inputs, pages: Sequence[int]) -> int:
    """With room for everything nothing changes; without, no fewer are admitted, and none mixed."""
    same = _histories(inputs, pages)
    loads = inputs(lambda random: _scarce(random, pages), LOADS)
    stock = [admitted(**load)["admitted"] for load in loads]
    with live(patch):
        count = same(patch)
        for load, expected in zip(loads, stock, strict=True):
            found = admitted(**load)["admitted"]
            must(found >= expected, f"{patch}, {load}: {found} admitted, stock {expected}")
        return count + len(loads) + _episodes(inputs, pages)


def _histories(inputs: Inputs, pages: Sequence[int]) -> Callable[[str], int]:
    """Play loads with room for everything on stock; call the result to compare with what is live.

    One call of `live` for all that a case compares: putting patches live takes a second.
    """

    def drawn(random: Random) -> Load:
        prompts = tuple(random.randint(1, 400) for _ in range(random.randint(1, 6)))
        window = random.choice((1, 20, 100, 700))
        return {"window": window, "page_size": random.choice(pages), "prompts": prompts}

    loads = [*({"window": 100, "page_size": page} for page in pages), *inputs(drawn, LOADS)]
    stock = [history(**load) for load in loads]

    def same(patch: str) -> int:
        for load, expected in zip(loads, stock, strict=True):
            difference = differs(expected, history(**load))
            must(difference is None, f"{patch}, {load}: {difference}")
        return len(loads)

    return same


def _episodes(inputs: Inputs, pages: Sequence[int]) -> int:
    """Play random episodes with what is live; how often every invariant was checked."""
    seeds = inputs(lambda random: random.getrandbits(32), EPISODES)
    return sum(play(Random(seed), pages) for seed in seeds)  # noqa: S311


def _scarce(random: Random, pages: Sequence[int]) -> Load:
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
