"""What must hold of a decode worker's pools between any two steps."""

from __future__ import annotations

from typing import Any

import torch

from sglang_perf_patches.verify.comparing import require
from tests.proof.swa.host_pool import buffers
from tests.proof.swa.rig import DecodeWorker


class Witness:
    """Writes recognisable KV for every token, and finds it again; `written` counts its tokens."""

    def __init__(self, worker: DecodeWorker) -> None:
        self.worker = worker
        self.written: dict[str, int] = {}
        self.checks = 0
        worker.written = self.write

    def write(self, req: Any, first: int, end: int) -> None:
        """Write KV as a transfer or a decode step does: where a slot is mapped."""
        slots = self.worker.slots(req, first, end).long()
        values = _values(req, first, end)
        pool = self.worker.pool
        _fill(pool.full_kv_pool, slots, values)
        swa = self.worker.allocator.full_to_swa_index_mapping[slots]
        _fill(pool.swa_kv_pool, swa[swa > 0], values[swa > 0])
        self.written[req.rid] = end

    def check(self) -> None:
        live = self.worker.live()
        self._pages(live)
        self._mapping(live)
        self._contents(live)
        self._refused()
        self.checks += 1

    def check_drained(self) -> None:
        worker, allocator = self.worker, self.worker.allocator
        require(worker.idle, "requests are left")
        page = worker.shape.page_size
        for name, free, size in (
            ("full", allocator.full_available_size(), worker.shape.full_tokens),
            ("sliding-window", allocator.swa_available_size(), worker.shape.swa_tokens),
        ):
            is_whole = free == size // page * page
            require(is_whole, f"the {name} pool has {free} of {size} after a drain")
        group = getattr(worker.tree_cache, "host_pool_group", None)
        for entry in group.entries if group is not None else ():
            taken = entry.host_pool.size - entry.host_pool.available_size()
            require(not taken, f"{taken} slots of a host pool are taken")
        mapping = allocator.full_to_swa_index_mapping
        require(int(mapping[-1]) == -1, "the mapping's last entry is not -1")
        require(not mapping[:-1].any(), "slots are still mapped after a drain")
        self.checks += 1

    def _pages(self, live: list[Any]) -> None:
        """Free and live pages are unique, disjoint, and all there are."""
        worker, page = self.worker, self.worker.shape.page_size
        mapping = worker.allocator.full_to_swa_index_mapping
        full_live, swa_live = [], []
        for req in live:
            slots = worker.slots(req, 0, worker.allocated(req)).long()
            full_live.append(slots[::page] // page)
            swa_live.append(mapping[slots[worker.evicted(req) :: page]] // page)
        for part, owned, size in (
            (worker.allocator.full_attn_allocator, full_live, worker.shape.full_tokens),
            (worker.allocator.swa_attn_allocator, swa_live, worker.shape.swa_tokens),
        ):
            pages = torch.cat([_free_pages(part), *owned])
            require(len(torch.unique(pages)) == len(pages), "a page has two owners")
            require(sorted(pages.tolist()) == list(range(1, size // page + 1)), "a page is lost")

    def _mapping(self, live: list[Any]) -> None:
        """A request is mapped from its evicted length on, to slots that nobody else has."""
        worker, page = self.worker, self.worker.shape.page_size
        mapping = worker.allocator.full_to_swa_index_mapping
        owned, charged = [], 0
        for req in live:
            evicted, allocated = worker.evicted(req), worker.allocated(req)
            require(evicted % page == 0, "a part of a page is evicted")
            require(worker.committed(req) <= allocated, "a token has KV and no slot")
            slots = mapping[worker.slots(req, 0, allocated).long()]
            require(not slots[:evicted].any(), "an evicted token is mapped")
            require((slots[evicted:] > 0).all(), "a token that is not evicted is not mapped")
            owned.append(slots[evicted:])
            charged += -(-allocated // page) * page - evicted
        slots = torch.cat(owned) if owned else torch.empty(0)
        require(len(torch.unique(slots)) == len(slots), "two tokens own one sliding-window slot")
        used = worker.shape.swa_tokens // page * page - worker.allocator.swa_available_size()
        require(used == charged, f"{used} sliding-window tokens are used, {charged} are held")

    def _contents(self, live: list[Any]) -> None:
        """Full KV of every token, and sliding-window KV of the window, is what was written."""
        worker = self.worker
        for req in live:
            if req.rid not in self.written:
                continue  # in transfer
            end = min(self.written[req.rid], worker.committed(req))
            slots = worker.slots(req, 0, end).long()
            values = _values(req, 0, end)
            full = _read(worker.pool.full_kv_pool, slots)
            require(full.eq(values[:, None]).all(), "full KV of a token is another")
            start = max(0, end - (worker.shape.window or end))
            require(worker.evicted(req) <= start, "a token in the window has been evicted")
            swa = worker.allocator.full_to_swa_index_mapping[slots[start:]]
            read = _read(worker.pool.swa_kv_pool, swa)
            require(read.eq(values[start:, None]).all(), "window KV of a token is another")

    def _refused(self) -> None:
        """An admitted request may be aborted only where no memory is left that could hold it.

        At page size 1 the tails are ours and stock would have admitted fewer requests. So there a
        full pool of the host is no excuse.
        """
        excuses = ["Out of memory"]
        tails = getattr(self.worker.queue, "_uses_swa_tail_prealloc", None)
        if self.worker.shape.page_size > 1 or tails is None or not tails():
            excuses.append("host KV pool exhausted")
        for rid in self.worker.order:
            message = self.worker.rejected.get(rid, "")
            excused = not message or any(excuse in message for excuse in excuses)
            require(excused, f"{rid} was admitted: {message}")


def _values(req: Any, first: int, end: int) -> Any:
    number = int(req.rid.removeprefix("r")) + 1
    return torch.arange(first, end, dtype=torch.float32) + number * 2048


def _fill(pool: Any, slots: Any, values: Any) -> None:
    rows = values[:, None, None]
    for buffer in buffers(pool):
        # A number does not fit into 8 bits: its bytes are the values of a head.
        buffer[slots] = rows.view(buffer.dtype) if buffer.itemsize == 1 else rows.to(buffer.dtype)


def _read(pool: Any, slots: Any) -> Any:
    parts = torch.cat([buffer[slots].flatten(1) for buffer in buffers(pool)], dim=1)
    return parts.view(torch.float32) if parts.itemsize == 1 else parts


def _free_pages(allocator: Any) -> Any:
    if hasattr(allocator, "get_all_free_pages"):
        return allocator.get_all_free_pages()
    parts = (allocator.free_pages, getattr(allocator, "release_pages", None))
    return torch.cat([part for part in parts if part is not None])
