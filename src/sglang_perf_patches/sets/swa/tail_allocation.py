"""Allocating full-attention KV for a whole sequence, and sliding-window KV only for its tail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .window import ceil_align


def alloc_extend_swa_tail(
    self: Any,
    prefix_lens: Any,
    prefix_lens_cpu: Any,
    seq_lens: Any,
    seq_lens_cpu: Any,
    last_loc: Any,
    extend_num_tokens: int,
    swa_tail_len: int,
) -> Any:
    """Extend one sequence in whole pages; a method of ``SWATokenToKVPoolAllocator``.

    The name and the arguments are upstream's (sgl-project/sglang#24857); each tensor has one
    element, int64. `prefix_lens` tokens have KV already, `seq_lens` shall have it. `last_loc` is
    the slot of the last token of the prefix, -1 where there is none. The last `swa_tail_len` tokens
    get sliding-window KV; the first of them is the first of a page.

    Returns the slots of the new tokens, int64 of shape ``(extend_num_tokens,)``; None, and nothing
    taken, where either pool lacks pages.
    """
    import torch

    page, full, swa = self.page_size, self.full_attn_allocator, self.swa_attn_allocator
    before, after = int(prefix_lens_cpu[0]), int(seq_lens_cpu[0])
    if ceil_align(after, page) - ceil_align(before, page) > full.available_size():
        return None
    if ceil_align(swa_tail_len, page) > swa.available_size():
        return None
    slots = full.alloc_extend(
        prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc, extend_num_tokens
    )
    clear_before_tail(self, slots, swa_tail_len)
    if swa_tail_len:
        none_cpu, tail_cpu = torch.tensor([0]), torch.tensor([swa_tail_len])
        none, tail = none_cpu.to(self.device), tail_cpu.to(self.device)
        mapped = swa.alloc_extend(none, none_cpu, tail, tail_cpu, none - 1, swa_tail_len)
        self.full_to_swa_index_mapping[slots[-swa_tail_len:]] = mapped
    return slots


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

    def alloc_extend(*args: Any, **kwargs: Any) -> Any:
        return allocator.alloc_extend_swa_tail(*args, **kwargs, swa_tail_len=swa_tail_len)

    allocator.alloc, allocator.alloc_extend = alloc, alloc_extend
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
