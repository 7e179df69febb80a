"""What the swa patches share: which queues they serve, and a window's arithmetic and allocation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
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
    if (setting(queue.scheduler, "pp_size") or 1) > 1:
        return "pipeline parallelism is on"
    # One is what the other is, or implies it: each release has its own words for it.
    words = ("dp_size", "attn_dp_size", "dwdp_size")
    widths = (setting(queue.scheduler, word) or 1 for word in words)
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


def setting(holder: Any, name: str) -> Any:
    """An argument of the server as it was resolved; None if the release has none of that name.

    From 0.5.17 on the resolved arguments are in groups of the process's own, and what the
    server's parts have are those that the operator gave.
    """
    try:
        from sglang.srt.runtime_context import get_context, get_memory, get_schedule, get_spec
    except ImportError:  # up to 0.5.16
        return getattr(holder.server_args, name, None)
    groups = (get_schedule(), get_memory(), get_spec(), get_context().config_bag("parallel"))
    return next((getattr(group, name) for group in groups if hasattr(group, name)), None)


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


# -- full-attention KV for a whole sequence, sliding-window KV only for its tail -------------------


def clear_before_tail(allocator: Any, slots: Any, swa_tail_len: int) -> None:
    """Unmap new slots before the tail: an earlier owner may have left them mapped.

    Without this two live requests own one sliding-window slot (sgl-project/sglang#25805).
    """
    unmap(allocator, slots[: len(slots) - swa_tail_len])


def unmap_pages(allocator: Any, slots: Any) -> None:
    """Unmap every slot of the pages that `slots` touch (sgl-project/sglang#27779).

    Only for an allocator whose queue allocates tails: it has ``_swa_unmaps_pages``. Slots behind
    the end of a sequence, in its last page, are freed with the page and never named: they would
    stay mapped to a page that has another owner.
    """
    import torch

    unmaps = vars(allocator).get("_swa_unmaps_pages")
    if unmaps and allocator.page_size > 1 and slots.numel():
        pages = torch.unique(slots.long() // allocator.page_size)
        offsets = torch.arange(allocator.page_size, device=pages.device)
        unmap(allocator, (pages[:, None] * allocator.page_size + offsets).flatten())


def unmap(allocator: Any, slots: Any) -> None:
    """Give slots no sliding-window KV; the fill's value travels without a stream sync."""
    allocator.full_to_swa_index_mapping.index_fill_(0, slots.long(), 0)


@contextmanager
def tail_only(allocator: Any, swa_tail_len: int) -> Iterator[None]:
    """Within, this one allocator gives window KV only to the tail of a whole allocation."""
    full, swa = allocator.full_attn_allocator, allocator.swa_attn_allocator

    def alloc(need_size: int) -> Any:
        """As `alloc_extend_swa_tail`, at page size 1 and without a prefix."""
        if need_size > full.available_size() or swa_tail_len > swa.available_size():
            return None
        slots = full.alloc(need_size)
        clear_before_tail(allocator, slots, swa_tail_len)
        if swa_tail_len:
            allocator.full_to_swa_index_mapping[slots[-swa_tail_len:]] = swa.alloc(swa_tail_len)
        return slots

    allocator.alloc = alloc
    allocator.alloc_extend = partial(allocator.alloc_extend_swa_tail, swa_tail_len=swa_tail_len)
    try:
        yield
    finally:
        del allocator.alloc, allocator.alloc_extend


def record_evicted(decode: Any, req: Any, length: int) -> None:
    """Note on a request, where its release does, that `length` tokens have no sliding-window KV."""
    if hasattr(req, "swa_evicted_seqlen"):
        req.swa_evicted_seqlen = length
    elif hasattr(req.kv, "set_evicted_seqlen"):
        req.kv.set_evicted_seqlen(decode.ComponentType.SWA, length)
    else:
        req.kv.swa_evicted_seqlen = length
