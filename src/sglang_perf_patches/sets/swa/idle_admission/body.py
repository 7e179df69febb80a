"""swa.idle-admission: an idle decode server admits a request that fits its sliding-window pool.

Stock wants room in that pool for the tail of the prompt and for ``min(max_new_tokens, 4096)``
tokens more (`pop_preallocated`, ``sglang.srt.disaggregation.decode``). If the pool is smaller,
a request without ``max_tokens`` waits forever, and with it every request behind it.
"""

from __future__ import annotations

from typing import Any

from ....model.patching import MISSING, Patching
from .. import growth
from ..references import QUEUE
from ..window import ceil_align, idle, serving

_LEAVES = "beside a request that it admitted, stock's own rule admits no more than the patch does"


def install(patching: Patching) -> None:
    """Before 0.5.12: swa.tail-prealloc uses one method for the size that a request grows to."""
    patching.anytime(_LEAVES)
    serves = serving(patching, "_swa_idle_served")

    def make(inner: Any) -> Any:
        def peak(self: Any, req: Any, held: int, idle: bool) -> int:
            """Sliding-window tokens that a request needs until it ends, at most."""
            tokens: int = inner(self, req, held, idle)
            if tokens <= growth.bound(self) or not (idle and serves(self) and can_end(self)):
                return tokens
            patching.ran.seen = True
            return growth.bound(self)

        return MISSING if inner is MISSING else peak

    patching.override(f"{QUEUE}._swa_peak_tokens", make)


def install_in_stock_rule(patching: Patching) -> None:
    """From 0.5.12: stock's own rule, with the bound for the first request of an idle server.

    The first alone: once it has its slots, the pools are no longer whole and the server not idle.
    """
    patching.anytime(_LEAVES)
    serves = serving(patching, "_swa_idle_served")
    growth.limit_growth(patching, lambda queue: idle(queue) and serves(queue) and can_end(queue))


def can_end(queue: Any) -> bool:
    """Whether a request on an idle server can decode to its end, whatever is admitted after it.

    To make room for it stock retracts what else runs, but nothing that is in transfer. So the
    sliding-window pool has to hold the tails of as many requests as the server has rows for. The
    pool that stock makes for a number of running requests, from 0.5.14 on, mostly does.
    """
    allocator, window = queue.token_to_kv_pool_allocator, queue.scheduler.sliding_window_size
    others = queue.req_to_token_pool.available_size() - 1
    tail = ceil_align(window + allocator.page_size - 1, allocator.page_size)
    return bool(growth.bound(queue) + others * tail <= allocator.swa_available_size())
