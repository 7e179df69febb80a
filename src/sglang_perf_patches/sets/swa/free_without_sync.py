"""swa.free-without-sync: freeing sliding-window KV does not wait for the GPU.

Stock queries the GPU which of the named slots have sliding-window KV, and which pages they are in
(``torch.unique``, a boolean mask). Each answer has a length that the host must wait for. The host
knows both beforehand if the slots are a range of one request's row: the evicted length shows where
the mapped part starts, and the first position shows where a page begins. Upstream's changes
are sgl-project/sglang#32701 (0.5.17), #37876 and #38159 (0.5.20).

What is free afterwards is the same, in the same order, as after stock's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .tail_allocation import unmaps_pages
from .window import ALLOCATORS

if TYPE_CHECKING:
    from ...model.patching import Patching

BATCH = "sglang.srt.managers.schedule_batch:ScheduleBatch"
COMMON = "sglang.srt.mem_cache.common"
OLD_ALLOCATOR = "sglang.srt.mem_cache.swa_memory_pool:SWATokenToKVPoolAllocator"
ALLOCATOR = "sglang.srt.mem_cache.allocator.swa:SWATokenToKVPoolAllocator"


@dataclass(frozen=True)
class Segment:
    """A range of one request's row that is freed.

    Attributes:
        length: in tokens; its first token is the first of a page.
        unmapped: how many of the first tokens have no sliding-window KV; in whole pages, or all.
    """

    length: int
    unmapped: int


def install_old(patching: Patching) -> None:
    """Up to 0.5.12.post1: the allocator is in the pools' module, and unmaps named slots alone."""
    _install(patching, OLD_ALLOCATOR, unmaps_pages)


def install_moved(patching: Patching) -> None:
    """0.5.13 and 0.5.13.post1: the allocator has a module of its own."""
    _install(patching, ALLOCATOR, unmaps_pages)


def install(patching: Patching) -> None:
    """0.5.14 to 0.5.18: the slots of whole pages are unmapped."""
    _install(patching, ALLOCATOR, lambda _: True)


def install_evictions(patching: Patching) -> None:
    """0.5.19: a finished request is freed by stock's own segments; window eviction is not."""
    _install_free_swa_at_once(patching)
    _install_evictions(patching)


def _install(patching: Patching, allocator: str, whole_pages: Callable[[Any], bool]) -> None:
    patching.override(f"{allocator}.free_swa", lambda inner: _free_swa(inner, whole_pages))
    patching.override(f"{allocator}.free", lambda inner: _free(inner, patching))
    _install_evictions(patching)
    _install_releases(patching)


def _install_evictions(patching: Patching) -> None:
    # 0.5.19's evicted slots are given back before the call ends.
    patching.anytime("slots that wait for the end of a group of frees are in stock's own list")

    def make(inner: Any) -> Any:
        def maybe_evict_swa(self: Any) -> Any:
            allocator = self.token_to_kv_pool_allocator
            if not serves(allocator, self, patching):
                return inner(self)
            patching.ran.seen = True
            with _ranges_of(allocator, self.req_to_token_pool, None):
                inner(self)
                _end_of_evictions(allocator)
            return None

        return maybe_evict_swa

    patching.override(f"{BATCH}.maybe_evict_swa", make)


def _install_releases(patching: Patching) -> None:
    def make(inner: Any) -> Any:
        def release_kv_cache(req: Any, tree_cache: Any, *args: Any, **named: Any) -> Any:
            allocator = getattr(tree_cache, "token_to_kv_pool_allocator", None)
            if allocator is None or not vars(allocator).get("_swa_knows_ranges"):
                return inner(req, tree_cache, *args, **named)
            with _ranges_of(allocator, tree_cache.req_to_token_pool, req):
                return inner(req, tree_cache, *args, **named)

        return release_kv_cache

    patching.override(f"{COMMON}:release_kv_cache", make)


def serves(allocator: Any, batch: Any, patching: Patching) -> bool:
    """Whether an allocator's slots are known by their ranges; settled once for each allocator.

    Args:
        allocator: the one from which the batch allocates KV.
        batch: a ``ScheduleBatch``.
        patching: gets the reason if not.
    """
    settled = vars(allocator).get("_swa_knows_ranges")
    if settled is None:
        reason = unserved(allocator, batch)
        settled = allocator._swa_knows_ranges = reason is None
        if reason:
            patching.gate(reason)
    return bool(settled)


def unserved(allocator: Any, batch: Any) -> str | None:
    """Why the KV of a batch is freed by stock's code; None where by ours."""
    if type(allocator).__name__ != "SWATokenToKVPoolAllocator":
        return f"the KV allocator is {type(allocator).__name__}"
    if type(allocator._kvcache).__name__ != "SWAKVPool":
        return f"the KV pool is {type(allocator._kvcache).__name__}"
    for part in (allocator.full_attn_allocator, allocator.swa_attn_allocator):
        if type(part).__name__ not in ALLOCATORS:
            return f"a KV allocator is {type(part).__name__}"
    if batch.model_config.is_encoder_decoder:
        # An encoder's length may end within a page: sgl-project/sglang#38840.
        return "the model has an encoder"
    return None


def segment_of(allocator: Any, slots: Any) -> Segment | None:
    """What the host knows of slots that are freed now; None if it does not.

    Args:
        allocator: whose slots; within `_ranges_of`.
        slots: of shape ``(n,)``; known if they are a view of a request's row.
    """
    held = vars(allocator).get("_swa_ranges")
    if held is None or slots.dim() != 1:
        return None
    rows, req = held
    if slots.untyped_storage().data_ptr() != rows.untyped_storage().data_ptr():
        return None
    if slots.stride(0) != 1 and len(slots) > 1:
        return None
    row, start = divmod(slots.storage_offset() - rows.storage_offset(), rows.stride(0))
    page = allocator.page_size
    if start % page:
        return None
    if req is None:  # an eviction: it starts after earlier ones, so all is mapped
        return Segment(len(slots), 0) if len(slots) % page == 0 else None
    holder = req if hasattr(req, "swa_evicted_seqlen") else req.kv
    if holder is None:
        return None
    if row != (req.req_pool_idx if hasattr(req, "req_pool_idx") else holder.req_pool_idx):
        return None
    unmapped = min(max(holder.swa_evicted_seqlen - start, 0), len(slots))
    if unmapped % page and unmapped < len(slots):
        return None
    return Segment(len(slots), unmapped)


@contextmanager
def _ranges_of(allocator: Any, pool: Any, req: Any) -> Iterator[None]:
    """While this lasts, views of the pool's rows are known ranges.

    Args:
        allocator: whose slots the rows hold.
        pool: the ``ReqToTokenPool``.
        req: whose row is freed; None while windows are evicted.
    """
    before = vars(allocator).get("_swa_ranges")
    allocator._swa_ranges = (pool.req_to_token, req)
    try:
        yield
    finally:
        allocator._swa_ranges = before


def _free(inner: Any, patching: Patching) -> Any:
    def free(self: Any, free_index: Any) -> Any:
        if free_index.numel() == 0 or not vars(self).get("_swa_knows_ranges"):
            return inner(self, free_index)
        if not self.is_not_in_free_group:
            # Stock keeps the slots until the group ends, then frees all in one call.
            _Group.of(self, "free_group").add(self.free_group, segment_of(self, free_index))
            return inner(self, free_index)
        segments = _Group.of(self, "free_group").end(self.free_group, free_index)
        if segments is None:
            known = segment_of(self, free_index)
            segments = None if known is None else [known]
        if segments is None:
            return inner(self, free_index)
        patching.ran.seen = True
        _release(self.full_attn_allocator, [free_index], segments)
        self._swa_segments = segments
        try:
            self.free_swa(free_index)
        finally:
            self._swa_segments = None
        return None

    return free


def _free_swa(inner: Any, whole_pages: Callable[[Any], bool]) -> Any:
    def free_swa(self: Any, free_index: Any) -> Any:
        if free_index.numel() == 0 or not vars(self).get("_swa_knows_ranges"):
            return inner(self, free_index)
        segments = vars(self).get("_swa_segments")
        if segments is None:
            if not self.is_not_in_free_group and hasattr(self, "swa_free_group"):
                _Group.of(self, "swa_free_group").add(
                    self.swa_free_group, segment_of(self, free_index)
                )
                return inner(self, free_index)
            segments = _Group.of(self, "swa_free_group").end(None, free_index)
        if segments is None:
            known = segment_of(self, free_index)
            segments = None if known is None else [known]
        if segments is None:
            return inner(self, free_index)
        mapped = []
        for piece, segment in zip(_split(free_index, segments), segments, strict=True):
            mapped.append(self.full_to_swa_index_mapping[piece[segment.unmapped :]])
        alive = [Segment(segment.length - segment.unmapped, 0) for segment in segments]
        _release(self.swa_attn_allocator, mapped, alive)
        _unmap(self, free_index, segments, whole_pages(self))
        return None

    return free_swa


def _install_free_swa_at_once(patching: Patching) -> None:
    """0.5.19: in a group, stock finds out at once which slots are mapped, and frees them later."""

    def make(inner: Any) -> Any:
        def free_swa(self: Any, free_index: Any) -> Any:
            known = None
            if vars(self).get("_swa_knows_ranges") and free_index.numel():
                known = segment_of(self, free_index)
            if known is None or known.unmapped:
                return inner(self, free_index)
            slots = self.full_to_swa_index_mapping[free_index]
            self._swa_evicted = [*vars(self).get("_swa_evicted", ()), slots]
            _unmap(self, free_index, [known], True)
            return None

        return free_swa

    patching.override(f"{ALLOCATOR}.free_swa", make)


def _end_of_evictions(allocator: Any) -> None:
    """Give back what 0.5.19 evicted in this step, as stock does at the end of its group."""
    evicted = vars(allocator).get("_swa_evicted")
    if evicted:
        allocator._swa_evicted = []
        segments = [Segment(len(slots), 0) for slots in evicted]
        _release(allocator.swa_attn_allocator, evicted, segments)


class _Group:
    """What the host knows of the slots that stock has put off until a group ends."""

    def __init__(self) -> None:
        self._list: Any = None
        self._known: list[Segment | None] = []

    @staticmethod
    def of(allocator: Any, name: str) -> _Group:
        groups = vars(allocator).setdefault("_swa_groups", {})
        found: _Group = groups.setdefault(name, _Group())
        return found

    def add(self, members: list[Any], known: Segment | None) -> None:
        """Note what is put off next into stock's own list."""
        if members is not self._list or len(self._known) != len(members):
            # Another group has begun, or an entry was not noted: forget everything before.
            self._list, self._known = members, [None] * len(members)
        self._known.append(known)

    def end(self, members: list[Any] | None, slots: Any) -> list[Segment] | None:
        """The segments of all that is freed by one call; None if one is not known.

        Args:
            members: stock's list, if it still has it.
            slots: what is freed.
        """
        known, held = self._known, self._list
        self._known, self._list = [], None
        if held is None or (members is not None and members is not held):
            return None
        if len(known) != len(held) or any(segment is None for segment in known):
            return None
        segments = [segment for segment in known if segment is not None]
        return segments if sum(segment.length for segment in segments) == len(slots) else None


def _split(slots: Any, segments: Sequence[Segment]) -> Sequence[Any]:
    return slots.split([segment.length for segment in segments]) if len(segments) > 1 else [slots]


def _release(part: Any, slots: Sequence[Any], segments: Sequence[Segment]) -> None:
    """Give slots of one pool back to its allocator.

    Args:
        part: a ``TokenToKVPoolAllocator``, or a paged one.
        slots: either all in one tensor, or one tensor a segment.
        segments: their lengths.
    """
    import torch

    pieces = _split(slots[0], segments) if len(slots) == 1 else slots
    pieces = [piece for piece in pieces if len(piece)]
    if not pieces:
        return
    if part.page_size == 1:
        part.free(torch.cat(list(pieces)) if len(pieces) > 1 else pieces[0])
        return
    pages = torch.cat([piece[:: part.page_size] // part.page_size for piece in pieces])
    # Stock's `unique` sorts, and the next allocation depends on the order.
    pages = pages.sort().values
    name = "release_pages" if part.need_sort else "free_pages"
    setattr(part, name, torch.cat((pages, getattr(part, name))))


def _unmap(allocator: Any, slots: Any, segments: Sequence[Segment], whole_pages: bool) -> None:
    """Give slots no sliding-window KV, those behind the last one in its page too if `whole_pages`.

    The value is filled in by the GPU: assigning a number would copy it from the host, and wait.
    """
    import torch

    page = allocator.page_size
    if whole_pages and page > 1:
        first = torch.cat([piece[::page] for piece in _split(slots, segments)]) // page * page
        offsets = torch.arange(page, dtype=first.dtype, device=first.device)
        slots = (first[:, None] + offsets).flatten()
    allocator.full_to_swa_index_mapping.index_fill_(0, slots.long(), 0)
