"""At page size 1, a request in KV transfer reserves sliding-window KV for its window only.

Upstream's condition (`_uses_swa_tail_prealloc`, unchanged from 0.5.12 on) wants a page size above
1, which is CUDA's default unless an attention backend needs another.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ....model.declaration import Declaration, gains
from ....model.patch import of
from ....model.patching import MISSING
from .. import references as refs
from .. import window
from ..proven import DECODING, RANKS, TREES

_CACHE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
_COPIES = {
    "0.5.18 … 0.5.20": ("retraction_backup", "retraction_restore", "retraction_discard"),
    "0.5.21 …": ("backup_kv_cache", "restore_kv_cache", "discard_kv_cache_backup"),
}
"""What keeps retracted KV in the host's pool."""

_GATE = f"{refs.QUEUE}._uses_swa_tail_prealloc"
_ALLOCATES = ("__init__", "alloc", "free", "free_swa", "clear", "swa_available_size")
_BEFORE, _SINCE = "… 0.5.11", "0.5.12 …"

PATCH = Declaration(
    *(__name__, "0.5.9 … 0.5.23"),
    only_with=("window-pool", "decode-server", "one-token-pages"),
    proven_with=DECODING | RANKS | TREES,
    worth=gains(
        "on 0.5.23 it cuts the median first token of 10 prompts from 0.289 s to 0.144 s",
        "swa.md#first-10",
    ),
    anchors=refs.ADMITTED,
    requires=("swa.tail-prealloc",),
)
PATCH.on(
    _BEFORE,
    not_with=("pipeline",),
    only_with=("drafts-of-one",),
    depends=(*refs.ADMITTED, *of(refs.OLD_ALLOCATOR, *_ALLOCATES)),
)
PATCH.on(
    _SINCE,
    depends=(
        *refs.STOCK_RULE,
        *of(refs.QUEUE, "_swa_retractable_len", "_prealloc_kv_lens", "_prealloc_required_tokens"),
        *of(refs.QUEUE, "_allocatable_token_budgets", "_alloc_for_decode_prealloc"),
        *of(refs.QUEUE, "_pre_alloc", "_uses_swa_reservation"),
        # By the rule, these let prompts be as long as the full pool.
        *of(refs.QUEUE, "__init__", "_check_if_req_exceed_kv_capacity"),
        *of(refs.OLD_ALLOCATOR, *_ALLOCATES),
        *of(refs.ALLOCATOR, *_ALLOCATES, "free_swa_segment", "free_full_segment"),
        # What reads how far a request is evicted, or copies mapped slots.
        f"{refs.BATCH}._evict_swa",
        *of(refs.REQUEST, "reset_for_retract", "offload_kv_cache", "load_kv_cache"),
        f"{refs.COMMON}:release_kv_cache",
        f"{refs.COMMON}:free_kv_row_segments",
        *of(f"{refs.OLD_POOL}:SWAKVPool", "get_cpu_copy", "load_cpu_copy"),
        *(f"{refs.COMMON}:{each}" for names in _COPIES.values() for each in names),
        f"{refs.COMMON}:RetractionBackup",
        f"{_CACHE}._retraction_device_transfers",
        refs.EVICT_WINDOWS,
    ),
)


@PATCH.setup()
def setup(patch):
    window.stay_with_queues(patch)
    patch.state.decode = patch.module(refs.DECODE)
    patch.state.why_not = window.unserved_by_tails


@PATCH.setup(_BEFORE)
def setup_with_our_rule(patch):
    """swa.tail-prealloc does everything but check for a page size above 1."""
    patch.state.why_not = window.unserved


@PATCH.replaces(_GATE, releases=_BEFORE, adds=True)
@PATCH.replaces(_GATE, releases=_SINCE)
def uses_swa_tail_prealloc(self, *, patch, stock):
    """Whether this queue sizes sliding-window KV by the window; decided once for page size 1."""
    if self.token_to_kv_pool_allocator.page_size > 1:
        return stock is not MISSING and bool(stock(self))
    if "_swa_tail_served_unpaged" not in vars(self):
        reason = patch.state.why_not(self)
        self._swa_tail_served_unpaged = reason is None
        if reason is None:
            patch.ran.seen = True
            window.serve_by_window(self)
            self.token_to_kv_pool_allocator._swa_tails_unpaged = True
        else:
            patch.gate(reason)
    return self._swa_tail_served_unpaged


@PATCH.replaces(f"{refs.QUEUE}._pre_alloc", releases="0.5.12 … 0.5.15.post1")
def _pre_alloc(self, req, *args, patch, stock):
    allocator = self.token_to_kv_pool_allocator
    if allocator.page_size > 1 or not self._uses_swa_tail_prealloc():
        return stock(self, req, *args)
    length = window.fill_length(req)
    tail = self._swa_tail_len(length)
    with window.tail_only(allocator, tail):
        slots = stock(self, req, *args)
    window.record_evicted(patch.state.decode, req, length - tail)
    return slots


# A function of the module allocates, not the queue's method.
@PATCH.replaces(f"{refs.DECODE}:alloc_for_decode_prealloc", releases="0.5.16 …")
def alloc_for_decode_prealloc(allocator, *, patch, stock, **kwargs):
    if allocator.page_size > 1 or not kwargs["uses_swa_tail"] or kwargs["total_prefix_len"]:
        return stock(allocator, **kwargs)
    length, tail = kwargs["fill_len"], kwargs["swa_tail_len"]
    with window.tail_only(allocator, tail):
        slots = stock(allocator, **kwargs)
    if slots is not None:
        window.record_evicted(patch.state.decode, kwargs["req"], length - tail)
    return slots


# From 0.5.19 on a decode server backs retracted KV up in a host pool of 0.2 of the device's, and
# aborts a request that does not fit. On 0.5.18 that pool is as large as the device's, and a request
# that does not fit ends the scheduler. With tails more requests run, so more may be retracted than
# stock's few ever fill that pool with. It is kept as tensors, as releases before 0.5.18 do.
#
# While a request is retracted stock admits none. So what is kept is at most the KV of the requests
# that were live when the first of them was retracted, and of what they decode meanwhile. How much
# the host has left is not asked: the ranks of a server have to decide alike, and each sees another
# figure.


class Kept(SimpleNamespace):
    """What stock's ``RetractionBackup`` holds, in tensors."""


def in_tensors(cache: Any, req: Any) -> Kept:
    """Copy a request's KV as stock's other backend does."""
    req.offload_kv_cache(cache.req_to_token_pool, cache.token_to_kv_pool_allocator)
    holder = req if hasattr(req, "retraction_backup") else req.kv
    return Kept(**holder.retraction_backup._asdict())


@PATCH.replaces({spans: f"{_CACHE}.{names[0]}" for spans, names in _COPIES.items()})
def backup(self, req, *, stock):
    if not vars(self.token_to_kv_pool_allocator).get("_swa_tails_unpaged"):
        return stock(self, req)
    try:
        saved = stock(self, req)
    except RuntimeError as error:
        # 0.5.18, which has given back by then whatever it had taken.
        if not str(error).startswith("Retraction "):
            raise
        saved = None
    return in_tensors(self, req) if saved is None else saved


@PATCH.replaces({spans: f"{_CACHE}.{names[1]}" for spans, names in _COPIES.items()})
def restore(self, req, backup, *, stock):
    if not isinstance(backup, Kept):
        return stock(self, req, backup)
    return req.load_kv_cache(self.req_to_token_pool, self.token_to_kv_pool_allocator)


@PATCH.replaces({spans: f"{_CACHE}.{names[2]}" for spans, names in _COPIES.items()})
def discard(self, backup, *, stock):
    # Stock's caller drops the tensors: they have no slots to give back.
    return None if isinstance(backup, Kept) else stock(self, backup)
