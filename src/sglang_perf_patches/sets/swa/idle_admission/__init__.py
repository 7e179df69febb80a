"""An idle decode server admits a request that fits its sliding-window pool.

Stock wants room in that pool for the tail of the prompt and for ``min(max_new_tokens, 4096)``
tokens more (`pop_preallocated`, ``sglang.srt.disaggregation.decode``). If the pool is smaller,
a request without ``max_tokens`` waits forever, and with it every request behind it.
"""

from __future__ import annotations

from typing import Any

from ....model.declaration import Declaration, fixes
from ....model.patch import of
from ....model.patching import Patching
from ..proven import DECODING, IDLE_RANKS, TREES
from ..references import ADMITTED, BATCH, DECODE, EVICTS, QUEUE, STOCK_RULE
from ..window import ceil_align, idle, setting, unserved, wanted

_BEFORE, _SINCE = "… 0.5.11", "0.5.12 …"

PATCH = Declaration(
    *(__name__, "0.5.9 … 0.5.23"),
    only_with=("window-pool", "decode-server", "drafts-of-one"),
    proven_with=DECODING | IDLE_RANKS | TREES,
    worth=fixes("stock never answers some requests that fit an idle decode server's pool"),
    anchors=ADMITTED,
    requires=("swa.tail-prealloc",),
    # What a request needs until its end, and what can make room for it.
    depends=(
        *EVICTS,
        *of(BATCH, "retract_decode", "new_tokens_required_next_decode"),
        f"{DECODE}:DecodeReqToTokenPool.available_size",
    ),
    anytime="next to a request that it admitted, stock's rule admits no more than the patch does",
)
PATCH.on(_BEFORE, depends=ADMITTED, awaits=(DECODE,))
PATCH.on(_SINCE, depends=(*STOCK_RULE, f"{DECODE}:CLIP_MAX_NEW_TOKEN"))

NEVER = 1 << 40
"""Of `eviction_interval`: more steps than any request decodes."""


@PATCH.setup()
def setup(patch):
    patch.state.decode = patch.module(DECODE)


@PATCH.replaces(f"{QUEUE}._swa_peak_tokens", releases=_BEFORE, adds=True)
def peak_tokens(self, req, held, idle, *, patch, stock):
    """swa.tail-prealloc, whose method it is, uses it for the size that a request grows to."""
    tokens = stock(self, req, held, idle)
    if tokens > bound(self) and idle and _serves(patch, self) and can_end(self):
        patch.ran.seen = True
        return bound(self)
    return tokens


# From 0.5.12 on there is stock's own rule. It reserves no more than `bound` for the first
# request of an idle server. Only the first: once it has its slots, the pools are no longer whole
# and the server not idle. Stock asks ``_prealloc_kv_lens`` in two places what a request holds when
# it is admitted. The rule compares the larger of two needs with the pool:
#
# | need | stock's use of the length | returned here |
# | --- | --- | --- |
# | until its end, in ``pop_preallocated`` | adds max_new_tokens | a shorter one |
# | at once, ``_prealloc_required_tokens`` | adds a reserve | stock's own |
#
# Why the rule gets a wrong length: it adds in the middle of one long method, where nothing else can
# be replaced. A length that is shorter by what the sum exceeds the bound by makes the sum the
# bound. The length may become negative; the rule only adds to it.


@PATCH.replaces(f"{QUEUE}._prealloc_kv_lens", releases=_SINCE)
def _prealloc_kv_lens(self, req, *, patch, stock):
    full, swa = stock(self, req)
    # What it needs at once is its true length: so many slots are allocated next.
    at_once = "_swa_prices_allocation" in vars(self)
    if at_once or not (idle(self) and _serves(patch, self) and can_end(self)):
        return full, swa
    beyond = max(0, wanted(patch.state.decode, req, swa) - bound(self))
    if beyond:
        patch.ran.seen = True
    return full, swa - beyond


@PATCH.replaces(f"{QUEUE}._prealloc_required_tokens", releases=_SINCE)
def _prealloc_required_tokens(self, req, *, stock):
    self._swa_prices_allocation = True
    try:
        return stock(self, req)
    finally:
        del self._swa_prices_allocation


def _serves(patch: Patching, queue: Any) -> bool:
    """Whether a queue is supported, decided once; if not, it gates the patch."""
    if "_swa_idle_served" not in vars(queue):
        reason = unserved(queue)
        queue._swa_idle_served = reason is None and queue._uses_swa_tail_prealloc()
        if reason is not None:
            patch.gate(reason)
    return bool(queue._swa_idle_served)


def can_end(queue: Any) -> bool:
    """Whether a request on an idle server can decode to its end, whatever is admitted after it.

    To make room for it stock retracts what else runs, but nothing that is in transfer. So the
    sliding-window pool has to hold the tails of as many requests as the server has rows for. The
    pool that stock makes for a number of running requests, from 0.5.14 on, mostly does.
    """
    allocator, window = queue.token_to_kv_pool_allocator, queue.scheduler.sliding_window_size
    others = queue.req_to_token_pool.available_size() - 1
    tail = ceil_align(window + allocator.page_size - 1, allocator.page_size)
    return bool(bound(queue) + others * tail <= allocator.swa_available_size())


# -- how much sliding-window KV a request will hold -----------------------------------------------


def bound(queue: Any) -> int:
    """The most sliding-window KV that a request holds while it decodes, in tokens, whole pages.

    Its window, what it decodes until stock evicts again, the page that the window begins in, and
    the page before it, where stock keeps that too. Plus one token, as with overlap scheduling stock
    evicts before the last step's token is known. A speculative step decodes as many tokens as are
    drafted, and has slots for the steps in flight instead, as ``compute_swa_request_cap`` (0.5.21
    and later) counts them. From 0.5.14 to 0.5.17 stock evicts in every n-th step of the server: a
    request that does not decode in that step holds more for a while.
    """
    if "_swa_bound" not in vars(queue):
        page = queue.token_to_kv_pool_allocator.page_size
        window = queue.scheduler.sliding_window_size
        step, ahead = 1, 1
        if not queue.scheduler.spec_algorithm.is_none():
            step, ahead = drafted(queue.scheduler, page)
        held = window + eviction_interval(window, page) * step + page + kept_margin(page) + ahead
        queue._swa_bound = ceil_align(held, page)
    return int(queue._swa_bound)


def drafted(holder: Any, page_size: int) -> tuple[int, int]:
    """Tokens that a speculative step decodes at most, and slots allocated beyond those in use."""
    tokens = setting(holder, "speculative_num_draft_tokens") or 1
    steps = setting(holder, "speculative_num_steps") or 1
    branches = setting(holder, "speculative_eagle_topk") or 1
    a_step = max(tokens, branches * ceil_align(steps + page_size - 1, page_size))
    return tokens, 2 * a_step + page_size


def eviction_interval(window: int, page_size: int) -> int:
    """How many steps a request decodes between two evictions by stock; `NEVER` if it never evicts.

    Up to 0.5.13.post1 stock evicts where a request's steps, modulo this, are 1. Modulo 1 they never
    are: with a window of 1, for example, a request holds all that it decodes.
    """
    from sglang.srt.environ import envs

    if hasattr(envs, "SGLANG_SWA_EVICTION_INTERVAL"):
        return max(1, int(envs.SGLANG_SWA_EVICTION_INTERVAL.get()))
    interval = window
    if hasattr(envs, "SGLANG_SWA_EVICTION_INTERVAL_MULTIPLIER"):
        part = int(window * envs.SGLANG_SWA_EVICTION_INTERVAL_MULTIPLIER.get())
        interval = max(page_size, part // page_size * page_size)
    return interval if interval > 1 else NEVER


def kept_margin(page_size: int) -> int:
    """Tokens that eviction keeps in front of the window: one page from 0.5.11 to 0.5.13, else 0."""
    from sglang.srt.environ import envs

    return page_size if hasattr(envs, "SGLANG_SWA_EVICTION_INTERVAL_MULTIPLIER") else 0
