"""swa.page-size-1: at page size 1 too, a request in transfer holds KV only for its window.

Upstream's condition (`_uses_swa_tail_prealloc`, unchanged from 0.5.12 on) wants a page size above
1, which is CUDA's default unless an attention backend needs another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....model.patching import MISSING, Patching, replaces
from ..references import DECODE, QUEUE
from ..tail_allocation import record_evicted, tail_only
from ..window import fill_length, serve_by_window, stay_with_queues, unserved, unserved_by_tails
from . import COPIES, OLD_COPIES, host_copies


def install(patching: Patching) -> None:
    """Before 0.5.12: swa.tail-prealloc does everything but check for a page size above 1."""
    _install_condition(patching, unserved)


def _install_condition(patching: Patching, why_not: Callable[[Any], str | None]) -> None:
    stay_with_queues(patching)

    def make(inner: Any) -> Any:
        def uses_swa_tail_prealloc(self: Any) -> bool:
            """Whether this queue sizes sliding-window KV by the window.

            Decided once for page size 1, because stock checks several times for each request of
            each step.
            """
            if self.token_to_kv_pool_allocator.page_size > 1:
                return inner is not MISSING and bool(inner(self))
            if "_swa_tail_served_unpaged" not in vars(self):
                reason = why_not(self)
                self._swa_tail_served_unpaged = reason is None
                if reason is None:
                    patching.ran.seen = True
                    serve_by_window(self)
                    self.token_to_kv_pool_allocator._swa_tails_unpaged = True
                else:
                    patching.gate(reason)
            return bool(self._swa_tail_served_unpaged)

        return uses_swa_tail_prealloc

    patching.override(f"{QUEUE}._uses_swa_tail_prealloc", make)


def install_in_queue(patching: Patching) -> None:
    """0.5.12 to 0.5.15.post1: the queue's own method allocates."""
    _install_condition(patching, unserved_by_tails)
    decode = patching.module(DECODE)

    @replaces(patching, f"{QUEUE}._pre_alloc")
    def _pre_alloc(self: Any, req: Any, *args: Any, inner: Any, **kwargs: Any) -> Any:
        allocator = self.token_to_kv_pool_allocator
        if allocator.page_size > 1 or not self._uses_swa_tail_prealloc():
            return inner(self, req, *args, **kwargs)
        length = fill_length(req)
        tail = self._swa_tail_len(length)
        with tail_only(allocator, tail):
            slots = inner(self, req, *args, **kwargs)
        record_evicted(decode, req, length - tail)
        return slots


def install_in_function(patching: Patching) -> None:
    """From 0.5.16: a function of the module allocates."""
    _install_condition(patching, unserved_by_tails)
    decode = patching.module(DECODE)

    @replaces(patching, f"{DECODE}:alloc_for_decode_prealloc")
    def alloc_for_decode_prealloc(allocator: Any, *, inner: Any, **kwargs: Any) -> Any:
        if allocator.page_size > 1 or not kwargs["uses_swa_tail"] or kwargs["total_prefix_len"]:
            return inner(allocator, **kwargs)
        length, tail = kwargs["fill_len"], kwargs["swa_tail_len"]
        with tail_only(allocator, tail):
            slots = inner(allocator, **kwargs)
        if slots is not None:
            record_evicted(decode, kwargs["req"], length - tail)
        return slots


def install_with_old_copies(patching: Patching) -> None:
    """0.5.18 to 0.5.20: retracted KV also goes to a host pool that may be full."""
    install_in_function(patching)
    host_copies.keep_beside_the_pool(patching, OLD_COPIES)


def install_with_copies(patching: Patching) -> None:
    """From 0.5.21: as `install_with_old_copies`, by other names."""
    install_in_function(patching)
    host_copies.keep_beside_the_pool(patching, COPIES)
