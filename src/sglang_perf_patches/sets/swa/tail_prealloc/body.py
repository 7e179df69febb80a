"""swa.tail-prealloc: sliding-window KV of a request in transfer is as long as its window.

Upstream's change is sgl-project/sglang#24857 (first in 0.5.12), with the fixes #25805, #27779,
#28085 and #33794. Releases before 0.5.12 get all of that, and later ones the fixes that they lack.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Container
from typing import Any

from .. import window
from ..references import ALLOCATOR, DECODE, OLD_ALLOCATOR, OLD_POOL, QUEUE
from . import BEFORE, PATCH, PRICE, TRACKS

logger = logging.getLogger("sglang_perf_patches")

_ROWS = "swa_rows"
"""In a copy of KV: which rows of the sliding-window part are there, bool of shape ``(rows,)``."""


@PATCH.setup(BEFORE)
def setup(patch):
    # From 0.5.12 on it may be removed at any time: what it records of a request is what stock's own
    # evictions record, and what it prices is not admitted yet.
    window.stay_with_queues(patch)
    patch.state.decode = patch.module(DECODE)


# -- before 0.5.12 -------------------------------------------------------------------------------
#
# Sliding-window slots are allocated for a request's tail only, and only those are copied and freed.


@PATCH.replaces(f"{OLD_ALLOCATOR}.alloc_extend_swa_tail", releases=BEFORE, adds=True)
def alloc_tail(self, *, swa_tail_len, **extend):
    """Give a new sequence whole pages, and sliding-window KV to its last `swa_tail_len` tokens.

    The name and the arguments are upstream's (sgl-project/sglang#24857). The others are those of
    ``alloc_extend``, without a prefix; each tensor has one element, int64. The tail begins on a
    page boundary. Returns the slots, int64 of shape ``(extend_num_tokens,)``; None, and nothing
    taken, where either pool lacks pages.
    """
    import torch

    page, full, swa = self.page_size, self.full_attn_allocator, self.swa_attn_allocator
    if window.ceil_align(int(extend["seq_lens_cpu"][0]), page) > full.available_size():
        return None
    if window.ceil_align(swa_tail_len, page) > swa.available_size():
        return None
    slots = full.alloc_extend(**extend)
    window.clear_before_tail(self, slots, swa_tail_len)
    if swa_tail_len:
        none_cpu, tail_cpu = torch.tensor([0]), torch.tensor([swa_tail_len])
        none, tail = none_cpu.to(self.device), tail_cpu.to(self.device)
        mapped = swa.alloc_extend(none, none_cpu, tail, tail_cpu, none - 1, swa_tail_len)
        self.full_to_swa_index_mapping[slots[-swa_tail_len:]] = mapped
    return slots


@PATCH.replaces(f"{OLD_POOL}:SWAKVPool.get_cpu_copy", releases=BEFORE)
def get_cpu_copy(self, indices, *rest, stock):
    """Hold sliding-window KV only of mapped slots."""
    slots = self.full_to_swa_index_mapping[indices]
    mapped = slots > 0
    if bool(mapped.all()):
        return stock(self, indices, *rest)
    return {
        "full": self.full_kv_pool.get_cpu_copy(indices),
        "swa": self.swa_kv_pool.get_cpu_copy(slots[mapped]),
        _ROWS: mapped.cpu(),
    }


@PATCH.replaces(f"{OLD_POOL}:SWAKVPool.load_cpu_copy", releases=BEFORE)
def load_cpu_copy(self, kv_cache_cpu, indices, *rest, stock):
    """Write the rows that the copy has and the pool maps now."""
    import torch

    slots = self.full_to_swa_index_mapping[indices]
    mapped = (slots > 0).cpu()
    copied = kv_cache_cpu.get(_ROWS, torch.ones_like(mapped))
    both = mapped & copied
    if bool(both.all()):
        return stock(self, kv_cache_cpu, indices, *rest)
    self.full_kv_pool.load_cpu_copy(kv_cache_cpu["full"], indices)
    kept, chunk = mapped[copied], self.swa_kv_pool.cpu_offloading_chunk_size
    # One list of chunks a layer, each with all its buffers.
    layers = []
    for chunks in kv_cache_cpu["swa"]:
        buffers = [torch.cat(pieces)[kept].split(chunk) for pieces in zip(*chunks, strict=True)]
        layers.append([list(pieces) for pieces in zip(*buffers, strict=True)])
    self.swa_kv_pool.load_cpu_copy(layers, slots[both.to(slots.device)])
    return None


@PATCH.replaces(f"{QUEUE}._pre_alloc", releases=BEFORE)
def pre_alloc_tail(self, req, *prefix, patch, stock):
    length_of_prefix = prefix[1] if prefix else 0  # on 0.5.11
    if length_of_prefix or not self._uses_swa_tail_prealloc():
        return stock(self, req, *prefix)
    patch.ran.seen = True
    length = window.fill_length(req)
    tail = _tail(self, length)
    # Stock's method asks the allocator for the whole length, deep inside.
    with window.tail_only(self.token_to_kv_pool_allocator, tail):
        slots = stock(self, req, *prefix)
    # Stock evicts from here on, and copies and frees no window KV before it: there is none.
    req.swa_evicted_seqlen = length - tail
    return slots


# The other patches of the set override or ask the two methods that are added.


@PATCH.replaces(f"{QUEUE}._uses_swa_tail_prealloc", releases=BEFORE, adds=True)
def uses_swa_tail_prealloc(self):
    """Whether this queue sizes sliding-window KV by the window; settled once for each queue."""
    if "_swa_tail_served" not in vars(self):
        paged = self.token_to_kv_pool_allocator.page_size > 1
        self._swa_tail_served = paged and window.unserved(self) is None
        if self._swa_tail_served:
            window.serve_by_window(self)
    return self._swa_tail_served


@PATCH.replaces(f"{QUEUE}._swa_peak_tokens", releases=BEFORE, adds=True)
def peak(self, req, held, idle, *, patch):
    """As `wanted`; swa.idle-admission, which replaces this, asks whether the server is idle."""
    return window.wanted(patch.state.decode, req, held)


# A request is accepted up to the full pool's size. One that can never fit is answered with a 400.


@PATCH.replaces(f"{QUEUE}.__init__", releases=BEFORE)
def init(self, *args, patch, stock):
    stock(self, *args)
    if self._uses_swa_tail_prealloc():
        self.token_to_kv_pool_allocator._swa_unmaps_pages = True
        bound = inspect.signature(stock).bind(self, *args).arguments
        self.max_total_num_tokens = bound["max_total_num_tokens"]
    elif (reason := window.unserved(self)) is not None:
        patch.gate(reason)


def _refuse(decode: Any, req: Any, message: str) -> None:
    logger.error(message)
    decode.prepare_abort(req, message, status_code=decode.HTTPStatus.BAD_REQUEST)


@PATCH.replaces(f"{QUEUE}._check_if_req_exceed_kv_capacity", releases=BEFORE)
def _check_if_req_exceed_kv_capacity(self, req, *, patch, stock):
    exceeds = stock(self, req)
    if exceeds or not self._uses_swa_tail_prealloc():
        return exceeds
    needs = _never_fits(self, req)
    if needs:
        _refuse(patch.state.decode, req, f"Request {req.rid} needs {needs}")
        self.scheduler.stream_output([req], req.return_logprob)
    return bool(needs)


# Requests are chosen by a budget for each pool; stock's code admits and resumes what was chosen.


@PATCH.replaces(f"{QUEUE}._allocatable_tokens", releases=BEFORE)
def _allocatable_tokens(self, *args, stock):
    tokens = stock(self, *args)
    if self._uses_swa_tail_prealloc():
        # Stock starts from the scarcer pool; the other pool is accounted for separately.
        allocator = self.token_to_kv_pool_allocator
        tokens += allocator.full_available_size() - allocator.available_size()
    return tokens


@PATCH.replaces(f"{QUEUE}.pop_preallocated", releases=BEFORE)
def pop_preallocated(self, rids_to_check=None, *, patch, stock):
    if not self._uses_swa_tail_prealloc():
        return stock(self, rids_to_check)
    # `_admitted` needs to know which transfers are ready, so these steps come first.
    handshake = {"_resolve_pending_reqs": (), "_update_handshake_waiters": (rids_to_check,)}
    steps = [name for name in handshake if hasattr(self, name)]
    try:
        for name in steps:
            getattr(self, name)(*handshake[name])
            # Stock's method would take it a second time, and each poll is an all-reduce. So the
            # queue has a step of its own meanwhile, which does nothing.
            setattr(self, name, lambda *_: None)
        return stock(self, _admitted(self, patch.state.decode, rids_to_check))
    finally:
        for name in steps:
            vars(self).pop(name, None)


@PATCH.replaces(f"{QUEUE}.resume_retracted_reqs", releases=BEFORE)
def resume_retracted_reqs(self, rids_to_check=None, *, stock):
    """Resume those whose KV fits in whole pages, first come, first served.

    Stock prices the full pool in tokens, and would end the scheduler where the pages are more.
    """
    if not self._uses_swa_tail_prealloc():
        return stock(self, rids_to_check)
    swa_left = _swa_budget(self, None)
    full_left = self.token_to_kv_pool_allocator.full_available_size()
    resumed = set()
    for req in self.retracted_queue:
        if rids_to_check is not None and req.rid not in rids_to_check:
            continue
        swa, full = _swa_tokens(self, req), _pages(self, window.fill_length(req))
        if swa > swa_left or full > full_left:
            break
        swa_left -= swa
        full_left -= full
        resumed.add(req.rid)
    return stock(self, resumed)


# -- fixes ---------------------------------------------------------------------------------------


@PATCH.replaces(f"{OLD_ALLOCATOR}.alloc_extend_swa_tail", releases="0.5.12")
def alloc_extend_swa_tail(self, *args, stock):
    """Unmap before the tail, whose length is the last argument."""
    slots = stock(self, *args)
    if slots is not None:
        window.clear_before_tail(self, slots, args[-1])
    return slots


@PATCH.replaces(f"{OLD_ALLOCATOR}.free_swa", releases="… 0.5.12.post1")
@PATCH.replaces(f"{ALLOCATOR}.free_swa", releases="0.5.13 … 0.5.13.post1")
def free_swa(self, free_index, *, stock):
    """Unmap whole pages."""
    stock(self, free_index)
    window.unmap_pages(self, free_index)


@PATCH.replaces(f"{QUEUE}._pre_alloc", releases=TRACKS)
def _pre_alloc(self, req, *args, stock):
    """Keep the evicted length."""
    slots = stock(self, req, *args)
    length = window.fill_length(req)
    tail_alone = len(slots) == length and not self.scheduler.enable_hisparse
    if tail_alone and self._uses_swa_tail_prealloc():
        self.token_to_kv_pool_allocator._swa_unmaps_pages = True
        req.swa_evicted_seqlen = length - self._swa_tail_len(length)
    return slots


@PATCH.replaces(PRICE, releases="0.5.14 …")
def price(self, req, *, patch, stock, reserves=True):
    """Price whole pages, as they are allocated (sgl-project/sglang#33794)."""
    full, swa = stock(self, req)
    if not self._uses_swa_tail_prealloc():
        return full, swa
    patch.ran.seen = True
    page = self.token_to_kv_pool_allocator.page_size
    full_held, swa_held = self._prealloc_kv_lens(req)
    if not reserves and self.tree_cache.is_chunk_cache():
        swa = swa_held
    return full + -full_held % page, swa + -swa_held % page


@PATCH.replaces(PRICE, releases=TRACKS)
def price_without_reserve(self, req, *, patch, stock):
    """Hold no KV back for decode steps: without a prefix cache the window bounds the growth."""
    return price(self, req, patch=patch, stock=stock, reserves=False)


def _tail(queue: Any, length: int) -> int:
    page = queue.token_to_kv_pool_allocator.page_size
    return window.tail_length(length, queue.scheduler.sliding_window_size, page)


def _pages(queue: Any, length: int) -> int:
    return window.ceil_align(length, queue.token_to_kv_pool_allocator.page_size)


def _swa_tokens(queue: Any, req: Any) -> int:
    """What allocating a request takes from the sliding-window pool."""
    return _pages(queue, _tail(queue, window.fill_length(req)))


def _never_fits(queue: Any, req: Any) -> str:
    """What a request needs if it can't be allocated even in empty pools; else nothing."""
    allocator, reserve = queue.token_to_kv_pool_allocator, queue.num_reserved_decode_tokens
    sizes = (allocator.size_swa, allocator.size_full)
    swa_size, full_size = (size // allocator.page_size * allocator.page_size for size in sizes)
    swa = _swa_tokens(queue, req)
    full = len(req.origin_input_ids) + len(req.output_ids) + reserve
    if swa > swa_size:
        return f"sliding-window KV for {swa} tokens, and that pool holds {swa_size}"
    if full > full_size:
        of_which = f"of which {reserve} are the reserve for decoding"
        return f"KV for {full} tokens, {of_which}, and the pool holds {full_size}"
    return ""


def _admitted(queue: Any, decode: Any, rids: Container[str] | None) -> set[str]:
    """The ids of requests that stock may admit: aborted ones, and as many as both pools hold.

    First come, first served, by these figures of a request, in tokens:

    | pool | must be free | is taken |
    | --- | --- | --- |
    | full | the prompt, in whole pages | the same |
    | sliding-window | the tail in whole pages, or the peak less `retractable` | the tail |

    `retractable` is what retracting all running requests would free: they make room for the growth
    to the peak. The first request that does not fit keeps all behind it out, as in stock. On an
    idle server nothing will ever make room for it, so it gets a 400 and the next one is checked.
    """
    scheduler, allocator = queue.scheduler, queue.token_to_kv_pool_allocator
    running = scheduler.running_batch.reqs
    tails = (_tail(queue, len(req.origin_input_ids)) for req in running)
    retractable = sum(tails) + sum(len(req.output_ids) for req in running)
    swa_left = _swa_budget(queue, retractable)
    full_left = allocator.full_available_size()
    entries = [entry for entry in queue.queue if rids is None or entry.req.rid in rids]
    aborts = decode.FINISH_ABORT
    admitted = {e.req.rid for e in entries if isinstance(e.req.finished_reason, aborts)}
    alone = window.idle(queue)
    for entry in entries:
        if entry.req.rid in admitted or not entry.waiting_for_input:
            continue
        length = window.fill_length(entry.req)
        tail = _tail(queue, length)
        held, full = _pages(queue, tail), _pages(queue, length)
        needed = max(held, queue._swa_peak_tokens(entry.req, tail, alone) - retractable)
        if needed > swa_left or full > full_left:
            if not alone:
                break
            message = (
                f"Request {entry.req.rid} can't be admitted: its prompt and its max_new_tokens "
                f"need sliding-window KV for {needed} tokens, and that pool holds {swa_left}"
            )
            _refuse(decode, entry.req, message)
            admitted.add(entry.req.rid)
            continue
        alone = False  # from here on the server has work, so the next one may wait
        admitted.add(entry.req.rid)
        # The tail only: what it grows to beyond that, retractions can give back.
        swa_left -= held
        full_left -= full
    return admitted


def _swa_budget(queue: Any, retractable: int | None) -> int:
    """Sliding-window tokens that may be given away, by upstream's rule for them.

    `retractable` is what retracting every running request would free, in tokens. None to resume
    retracted requests: then nothing is kept for them, nor for the growth of running ones.
    """
    scheduler, allocator = queue.scheduler, queue.token_to_kv_pool_allocator
    running = scheduler.running_batch.reqs
    free: int = allocator.swa_available_size()
    used = allocator.size_swa - free

    def reserve(requests: int) -> int:
        # The window limits a request's growth, however long it decodes.
        growth = max(0, requests * scheduler.sliding_window_size - used)
        return int(min(queue.num_reserved_decode_tokens * requests, growth))

    # Whatever holds or will soon hold slots reserves some for its next decode steps.
    kept = reserve(len(running) + len(queue.transfer_queue.queue) + len(scheduler.waiting_queue))
    if retractable is not None and running:
        tails = ((r, _tail(queue, len(r.origin_input_ids))) for r in running)
        peaks = (queue._swa_peak_tokens(r, tail, False) for r, tail in tails)
        kept = max(kept, max(peaks) - retractable)
    batch = scheduler.last_batch
    if batch and batch.forward_mode.is_prebuilt():
        kept += reserve(len(batch.reqs))  # they are in no queue now
    if retractable is not None:
        kept += sum(_swa_tokens(queue, req) for req in queue.retracted_queue)
    return free - kept
