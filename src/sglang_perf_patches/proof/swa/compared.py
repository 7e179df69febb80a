"""Each swa patch beside stock, over sglang's own queue, pools, allocators and batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import sglang_perf_patches

from ...sets.swa.pool_ratio import hint as pool_hint
from .. import Different, Inputs
from ..comparing import differs, live
from ..comparing import same as same_as_stock
from . import evictions
from .episodes import PAGES, play
from .loads import admitted, alone_without_limit, history, pressed
from .pools import cells, pools, publish, sizes
from .prefix_trees import prepare
from .witness import must

LOADS, EPISODES, FULL = 4, 2, 40
"""How many are drawn of each; of full caches, in a second."""

PAGED = tuple(page for page in PAGES if page > 1)

Load = dict[str, Any]


def tail_prealloc(inputs: Inputs) -> int:
    """``swa.tail-prealloc``, at page sizes above 1."""
    return _exact("swa.tail-prealloc", inputs, PAGED)


def page_size_1(inputs: Inputs) -> int:
    """``swa.page-size-1``, at page size 1."""
    return _exact("swa.page-size-1", inputs, (1,))


def idle_admission(inputs: Inputs) -> int:
    """``swa.idle-admission``: what an idle server can serve is served, one after the other."""
    patch = "swa.idle-admission"
    # With a window of one token a request may be expected to hold less than it decodes: the patch
    # then takes part, though it changes nothing.
    same = _histories(inputs, PAGED, windows=(20, 100, 700))
    stock = alone_without_limit(64)
    must(not stock["order"], f"stock admits requests without max_tokens: {stock}")
    with _served(patch, ran=False):
        count = same(patch)
    with _served(patch):
        found = alone_without_limit(64)
        must(
            (found["first"], found["finished"], found["refused"]) == (1, 3, 0),
            f"{patch}: three requests, one at a time, and {found} is what came of them",
        )
        return count + 1 + _episodes(inputs, PAGED)


def pool_ratio(inputs: Inputs) -> int:
    """``swa.pool-ratio``: stock's own pools at another ratio, which hold what they must."""
    patch = "swa.pool-ratio"
    loads = inputs(_budget, 24)
    # Loads for which every release derives the ratio.
    derives = {"window": 128, "full": 12, "windowed": 12}
    loads += [(40 << 30, {**derives, "page_size": page}) for page in (1, 64)]
    stock = [_pools_or_none(*load) for load in loads]
    publish()
    with live(patch):
        found = [_pools_or_none(*load, published=True) for load in loads]
    for plain, ours in zip(stock[-2:], found[-2:], strict=True):
        if plain is None or ours is None:
            raise Different(f"{patch}: 40 GiB are refused")
        apart = ours[1]._swa_full_tokens_ratio != plain[1]._swa_full_tokens_ratio
        must(apart, f"{patch}: stock's own ratio, though the server is served")
    for (available, load), plain, ours in zip(loads, stock, found, strict=True):
        where = f"{patch}, {available} bytes, {load}"
        if plain is None or ours is None:
            must(plain is None and ours is None, f"{where}: one of them refuses the budget")
            continue
        derived = ours[1]._swa_full_tokens_ratio
        if derived == plain[1]._swa_full_tokens_ratio:
            must(sizes(ours[0]) == sizes(plain[0]), f"{where}: other pools at stock's ratio")
            continue
        full, swa = sizes(ours[0])
        must(full >= sizes(plain[0])[0], f"{where}: the full pool shrank")
        must(swa <= sizes(plain[0])[1], f"{where}: the sliding-window pool grew")
        least = 0 if load.get("disable_radix_cache") else load.get("max_running_requests", 64)
        must(swa >= ours[1]._swa_needs.with_tails(least), f"{where}: too small a pool")
        a_full, a_windowed = cells(plain[1])
        must(full * a_full + swa * a_windowed <= available, f"{where}: more than the budget")
        wanted = pool_hint.fit(
            ours[1]._swa_needs,
            full_cell=a_full,
            swa_cell=a_windowed,
            ratio=plain[1]._swa_full_tokens_ratio,
            available=available,
        )
        if wanted is None:
            raise Different(f"{where}: no other ratio is needed")
        # The pool is cut down to whole pages, and the ratio was made for one page more.
        must(abs(swa - wanted.swa) <= 2 * load["page_size"], f"{where}: not {wanted.swa} tokens")
        told, _ = pools(available, **load | {"swa_full_tokens_ratio": derived})
        # The sum of two products may differ in its last digit.
        apart = [abs(a - b) for a, b in zip(sizes(told), (full, swa), strict=True)]
        must(max(apart) <= load["page_size"], f"{where}: stock makes {sizes(told)} at this ratio")
    return len(loads)


def eviction_heap(inputs: Inputs) -> int:
    """``swa.eviction-heap``: the same leaves in the same order, of caches that are full."""
    prepare()
    return same_as_stock("swa.eviction-heap", evictions.play, inputs(evictions.episode, FULL))


def _budget(random: Random) -> tuple[int, Load]:
    full, windowed = random.choice(((12, 12), (10, 52), (4, 20), (18, 18)))
    return 1 << random.randint(30, 37), {
        "window": random.choice((128, 512, 1024, 4096)),
        "page_size": random.choice((1, 16, 64)),
        "full": full,
        "windowed": windowed,
        "max_running_requests": random.randint(1, 600),
        "disable_radix_cache": random.random() < 0.3,
    }


def _pools_or_none(
    available: int, load: Load, *, published: bool = False
) -> tuple[Any, Any] | None:
    """The pools of a budget; None where stock calls it too small.

    Args:
        available: see `pools`.
        load: see `pools`.
        published: whether the process says first that it is that server.
    """
    if published:
        caches = {"disable_radix_cache": True} if load.get("disable_radix_cache") else {}
        publish(page_size=load["page_size"], **caches)
    try:
        return pools(available, **load)
    except (RuntimeError, ValueError):
        return None


def window_bounded_admission(inputs: Inputs) -> int:
    """``swa.window-bounded-admission``: what a request may generate does not keep it out."""
    patch = "swa.window-bounded-admission"
    load = {"window": 128, "page_size": 64, "swa_tokens": 4096, "full_tokens": 1_048_576}
    lengths = (128, 3072, 4096, 8000)
    same = _histories(inputs, PAGED)
    with _served(patch):
        count = same(patch)
        for new in lengths:
            found = admitted(**load, prompt=1000, max_new_tokens=new)
            must(
                (found["admitted"], found["refused"]) == (20, 0),
                f"{patch}, max_new_tokens {new}: 20 requests fit, and {found} is what came of it",
            )
        return count + len(lengths) + _episodes(inputs, PAGED, drafts=False)


def evict_before_retract(inputs: Inputs) -> int:
    """``swa.evict-before-retract``: fewer retractions, and every token of every request."""
    patch = "swa.evict-before-retract"
    loads = ((16, 1, 420), (32, 1, 440), (32, 1, 520))
    same = _histories(inputs, PAGES)
    # On stock alone: other patches of the set change its pools.
    stock = [pressed(*load, watched=False) for load in loads]
    with _served(patch, ran=False):
        count = same(patch)
    with _served(patch):
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
    with _served(patch):
        count = same(patch)
        for load, expected in zip(loads, stock, strict=True):
            found = admitted(**load)["admitted"]
            must(found >= expected, f"{patch}, {load}: {found} admitted, stock {expected}")
        return count + len(loads) + _episodes(inputs, pages)


@contextmanager
def _served(patch: str, *, ran: bool = True) -> Iterator[None]:
    """As `live`, and none of the servers that are published meanwhile may gate the patch."""
    with live(patch, ran=ran):
        yield
        state = sglang_perf_patches.activate(patch).of(patch)
        must(state.state == "live", f"{patch} is {state.state} by now: {state.reason}")


def _histories(
    inputs: Inputs, pages: Sequence[int], windows: Sequence[int] = (1, 20, 100, 700)
) -> Callable[[str], int]:
    """Play loads with room for everything on stock; call the result to compare with what is live.

    One call of `live` for all that a case compares: putting patches live takes a second.
    """

    def drawn(random: Random) -> Load:
        prompts = tuple(random.randint(1, 400) for _ in range(random.randint(1, 6)))
        window = random.choice(windows)
        return {"window": window, "page_size": random.choice(pages), "prompts": prompts}

    loads = [*({"window": 100, "page_size": page} for page in pages), *inputs(drawn, LOADS)]
    stock = [history(**load) for load in loads]

    def same(patch: str) -> int:
        for load, expected in zip(loads, stock, strict=True):
            difference = differs(expected, history(**load))
            must(difference is None, f"{patch}, {load}: {difference}")
        return len(loads)

    return same


def _episodes(inputs: Inputs, pages: Sequence[int], *, drafts: bool = True) -> int:
    """Play random episodes with what is live; how often every invariant was checked."""
    seeds = inputs(lambda random: random.getrandbits(32), EPISODES)
    return sum(play(Random(seed), pages, drafts=drafts) for seed in seeds)  # noqa: S311


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
