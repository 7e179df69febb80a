"""What the swa patches share: which queues they serve, and the arithmetic of a sliding window."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from ...model.patching import Patching

ALLOCATORS = ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator")
"""Allocators of one pool whose behaviour the patches know: slots of one token, or whole pages."""

_BY_WINDOW: WeakSet[Any] = WeakSet()
"""Queues that reserve windows by a rule of the patches. They may hold prompts longer than stock's
window pool, and copies that stock can't load, so the rule stays for as long as they live."""


def stay_with_queues(patching: Patching) -> None:
    """Keep the patch on while a queue is left that `serve_by_window` was told of."""
    waits_for = "no queue is left that reserves windows by its rule"
    patching.drain(lambda: not len(_BY_WINDOW), waits_for)


def serve_by_window(queue: Any) -> None:
    """Take note of a queue that reserves windows by the patches' rule."""
    _BY_WINDOW.add(queue)


def unserved(queue: Any) -> str | None:
    """Why a decode prealloc queue is left to stock's code; None if the patches serve it.

    Their own admission arithmetic knows one running batch.
    """
    if reason := unserved_by_tails(queue):
        return reason
    if _width(queue.scheduler, "pp_size") > 1:
        return "pipeline parallelism is on"
    # One is what the other is, or implies it: each release has its own words for it.
    widths = (_width(queue.scheduler, name) for name in ("dp_size", "attn_dp_size", "dwdp_size"))
    if queue.draft_token_to_kv_pool is not None and max(widths) > 1:
        return "data parallelism with a draft model is on"
    return None


def unserved_by_tails(queue: Any) -> str | None:
    """As `unserved`, for a patch that leaves budgets and admission to stock.

    Stock's condition for tails at page sizes above 1 (from 0.5.12 on) asks neither for one
    pipeline stage nor for one replica: each rank allocates by itself, from its own pools.
    """
    allocator, scheduler = queue.token_to_kv_pool_allocator, queue.scheduler
    if type(allocator).__name__ != "SWATokenToKVPoolAllocator":
        return f"the KV allocator is {type(allocator).__name__}"
    if type(queue.token_to_kv_pool).__name__ != "SWAKVPool":
        return f"the KV pool is {type(queue.token_to_kv_pool).__name__}"
    for part in (allocator.full_attn_allocator, allocator.swa_attn_allocator):
        if type(part).__name__ not in ALLOCATORS:
            return f"a KV allocator is {type(part).__name__}"
    if getattr(allocator, "swa_req_ring", False):
        return "sliding-window KV is a ring for each request"
    if not scheduler.sliding_window_size or scheduler.sliding_window_size < 0:
        return "the model has no sliding window"
    if getattr(scheduler, "enable_hisparse", False):
        return "hisparse is on"
    cache = queue.tree_cache
    if getattr(cache, "supports_prefix_sharing", lambda: not cache.is_chunk_cache())():
        return "the decode radix cache is on"
    if getattr(scheduler, "decode_offload_manager", None) is not None:
        return "decode KV offload is on"
    return None


def _width(scheduler: Any, name: str) -> int:
    """A size of the server, such as ``dp_size``, as it was resolved (see `growth.setting`)."""
    try:
        from sglang.srt.runtime_context import get_context

        bag_of = get_context().config_bag
    except (ImportError, AttributeError):  # up to 0.5.16
        holder = scheduler.server_args
    else:
        holder = bag_of("parallel")
    return int(getattr(holder, name, None) or 1)


def idle(queue: Any) -> bool:
    """Whether every request is in the queue itself, and the sliding-window pool is whole."""
    scheduler, allocator = queue.scheduler, queue.token_to_kv_pool_allocator
    batch = scheduler.last_batch
    busy = (
        scheduler.running_batch.reqs
        or queue.transfer_queue.queue
        or scheduler.waiting_queue
        or queue.retracted_queue
        or (batch and batch.reqs)
    )
    whole = allocator.size_swa // allocator.page_size * allocator.page_size
    return not busy and bool(allocator.swa_available_size() == whole)


def wanted(decode: Any, req: Any, held: int) -> int:
    """Tokens that stock's rule wants until a request ends, which holds `held` once admitted."""
    return held + int(min(req.sampling_params.max_new_tokens, decode.CLIP_MAX_NEW_TOKEN))


def ceil_align(length: int, page_size: int) -> int:
    """`length` in tokens, rounded up to whole pages.

    >>> ceil_align(65, 64), ceil_align(64, 64), ceil_align(0, 64)
    (128, 64, 0)
    """
    return -(-length // page_size) * page_size


def tail_length(length: int, window: int, page_size: int) -> int:
    """How many of the last tokens of a sequence keep sliding-window KV, in tokens.

    The tail begins on a page boundary, at most one page before the window does.

    >>> tail_length(1000, 128, 64), tail_length(1000, 128, 1), tail_length(100, 128, 64)
    (168, 128, 100)
    """
    start = max(0, length - window)
    return length - start // page_size * page_size


def fill_length(req: Any) -> int:
    """How many tokens of a request get KV before its next decode step: all but the newest."""
    return len(req.origin_input_ids) + max(len(req.output_ids) - 1, 0)
