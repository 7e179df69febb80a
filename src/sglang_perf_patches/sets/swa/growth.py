"""How much sliding-window KV a request will hold."""

from __future__ import annotations

from typing import Any

from .window import ceil_align

NEVER = 1 << 40
"""Of `eviction_interval`: more steps than any request decodes."""


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


def setting(holder: Any, name: str) -> Any:
    """An argument of the server as it was resolved; None if the release has none of that name.

    From 0.5.17 on the resolved arguments are in groups of the process's own, and what the
    server's parts have are those that the operator gave.
    """
    try:
        from sglang.srt import runtime_context
    except ImportError:
        return getattr(holder.server_args, name, None)
    for group in ("get_schedule", "get_memory", "get_disagg", "get_spec"):
        arguments = getattr(runtime_context, group, lambda: None)()
        if hasattr(arguments, name):
            return getattr(arguments, name)
    return getattr(holder.server_args, name, None)


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
