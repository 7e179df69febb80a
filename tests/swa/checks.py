"""Checks of the swa patches on one release, over sglang's own queue, pools and batch."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import torch

from sglang_perf_patches.live.switch import callee_of
from sglang_perf_patches.sets.swa import window as windows
from sglang_perf_patches.sets.swa.growth import (
    NEVER,
    bound,
    eviction_interval,
    kept_margin,
)
from sglang_perf_patches.verify.stock import NoneByDefault
from tests.proof.swa.cases import alone_without_limit
from tests.proof.swa.pool_invariants import Witness
from tests.proof.swa.rig import DecodeWorker
from tests.proof.swa.shape import Shape


def refuses_what_never_fits(page_size: int = 64) -> None:
    """A tail, or a prompt and the reserve, beyond a whole pool: a 400, no crash and no silence."""
    worker = DecodeWorker(
        Shape(window=512, page_size=page_size, swa_tokens=256, full_tokens=2048, context=4096)
    )
    for prompt in (1000, 3000):
        req = worker.submit(prompt, 4)
        assert req.rid in worker.rejected
        reason = req.finished_reason or req.to_finish
        assert int(reason.status_code) == 400, reason
        assert not worker.queue.queue
    fits = worker.submit(100, 4)
    worker.run(50)
    assert worker.counts.finished == 1
    assert fits.rid not in worker.rejected


def refuses_what_would_block_for_ever() -> None:
    """Before 0.5.12: the rule for admission keeps the first request out of empty pools."""
    worker = DecodeWorker(
        Shape(window=128, page_size=64, swa_tokens=1024, full_tokens=65536, context=8192)
    )
    first, second = worker.submit(100, 3000), worker.submit(100, 20)
    worker.run(60)
    assert int((first.finished_reason or first.to_finish).status_code) == 400
    assert "3100" in worker.rejected[first.rid]
    assert second.rid not in worker.rejected
    assert worker.counts.finished == 1
    # With others running it waits, as on stock.
    worker.submit(100, 300)
    worker.step()
    third = worker.submit(100, 3000)
    worker.step()
    assert third.rid not in worker.rejected


def resumes_what_fits_in_pages() -> None:
    """Two retracted requests whose tokens fit together but whose pages don't: one is resumed."""
    shape = Shape(
        window=1,
        page_size=64,
        swa_tokens=320,
        full_tokens=448,
        context=640,
        running=5,
        in_transfer=4,
        reserved=0,
        transfer_steps=0,
    )
    worker = DecodeWorker(shape)
    witness = Witness(worker)
    for prompt in (1, 1, 120, 121):
        worker.submit(prompt, 60)
    for _ in range(10):
        worker.step()
    worker.retract()
    retracted = len(worker.queue.retracted_queue)
    assert retracted > 1, "more than one is to be retracted"
    worker.admit()
    witness.check()
    assert len(worker.queue.retracted_queue) == retracted - 1
    worker.run(300)
    assert worker.counts.finished == 4
    witness.check_drained()


def gates(page_size: int) -> None:
    """Situations that are stock's: each alone turns a served queue into an unserved one."""
    shape = Shape(window=32, page_size=page_size, swa_tokens=1024, full_tokens=4096, context=1024)
    queue = DecodeWorker(shape).queue
    assert windows.unserved(queue) is None
    scheduler = vars(queue.scheduler)
    for changed in (
        {"sliding_window_size": None},
        {"sliding_window_size": 0},
        {"sliding_window_size": -1},
        {"enable_hisparse": True},
        {"decode_offload_manager": object()},
    ):
        queue.scheduler = NoneByDefault(**(scheduler | changed))
        assert windows.unserved(queue), changed
    queue.scheduler = NoneByDefault(**scheduler)
    for name in ("token_to_kv_pool", "token_to_kv_pool_allocator"):
        kept = getattr(queue, name)
        other = type("Other", (type(kept),), {})
        setattr(queue, name, object.__new__(other))
        assert windows.unserved(queue), name
        setattr(queue, name, kept)
    part = queue.token_to_kv_pool_allocator.swa_attn_allocator
    queue.token_to_kv_pool_allocator.swa_attn_allocator = object()
    assert windows.unserved(queue)
    queue.token_to_kv_pool_allocator.swa_attn_allocator = part
    cache = queue.tree_cache
    shares = SimpleNamespace(is_chunk_cache=lambda: False, supports_prefix_sharing=lambda: True)
    queue.tree_cache = shares
    assert windows.unserved(queue)
    queue.tree_cache = cache
    assert windows.unserved(queue) is None


def gates_by_layout(layout: str) -> None:
    """Our own admission is for one rank, or for replicas without a draft model; tails for all."""
    shape = Shape(
        window=32,
        page_size=1,
        swa_tokens=1024,
        full_tokens=4096,
        context=1024,
        layout=layout,
    )
    queue = DecodeWorker(shape).queue
    assert windows.unserved_by_tails(queue) is None
    for drafts in (None, object()):
        queue.draft_token_to_kv_pool = drafts
        expected = layout == "stages" or (layout != "one" and drafts is not None)
        assert bool(windows.unserved(queue)) == expected, (layout, drafts)


def without_a_window_is_stock(page_size: int) -> None:
    """A queue whose model has no window allocates full length, as stock does."""
    shape = Shape(window=None, page_size=page_size, swa_tokens=1024, full_tokens=4096, context=1024)
    worker = DecodeWorker(shape)
    assert not worker.queue._uses_swa_tail_prealloc() or page_size > 1
    req = worker.submit(300, 4)
    worker.queue._pre_alloc(req)
    assert worker.evicted(req) == 0
    assert worker.allocator.swa_available_size() == 1024 - -(-300 // page_size) * page_size


def a_prefix_falls_back(page_size: int = 16) -> None:
    """Allocation behind a prefix is stock's: full length in both pools, nothing evicted."""
    shape = Shape(window=8, page_size=page_size, swa_tokens=1024, full_tokens=4096, context=1024)
    worker = DecodeWorker(shape)
    if "prefix_len" not in inspect.signature(stock_of(worker, "_pre_alloc")).parameters:
        return
    first = worker.submit(64, 4)
    worker.admit()
    req = worker.submit(200, 4)
    before = worker.allocator.swa_available_size()
    prefix = worker.slots(first, 0, 32).clone()
    worker.queue._pre_alloc(req, prefix, 32)
    assert worker.evicted(req) == 0
    assert before - worker.allocator.swa_available_size() == 208 - 32


def stock_of(worker: DecodeWorker, name: str) -> Any:
    """The function of that name in the source of the queue's class, below every patch."""
    function = vars(type(worker.queue))[name]
    while True:
        names, shown = function.__code__.co_freevars, callee_of(function)
        if shown is None and "inner" in names:
            shown = function.__closure__[names.index("inner")].cell_contents
        if shown is None:
            return function
        function = shown


def stale_slots_are_unmapped(page_size: int = 16) -> None:
    """New slots before the tail have no mapping, whatever an earlier owner left (#25805)."""
    shape = Shape(window=16, page_size=page_size, swa_tokens=512, full_tokens=1024, context=1024)
    worker = DecodeWorker(shape)
    mapping = worker.allocator.full_to_swa_index_mapping
    mapping[:-1] = 7  # as if nothing had ever been unmapped
    req = worker.submit(200, 4)
    worker.queue._pre_alloc(req)
    slots = worker.slots(req, 0, 200).long()
    tail = windows.tail_length(200, 16, page_size)
    assert not mapping[slots[: 200 - tail]].any()
    assert len(torch.unique(mapping[slots[200 - tail :]])) == tail


def freed_pages_are_unmapped(page_size: int = 16) -> None:
    """Freeing part of a page's slots unmaps the whole page, and no other (#27779)."""
    shape = Shape(
        window=64,
        page_size=page_size,
        swa_tokens=512,
        full_tokens=1024,
        context=1024,
        reserved=0,
    )
    worker = DecodeWorker(shape)
    first, second = worker.submit(48, 4), worker.submit(48, 4)
    worker.admit()
    mapping, allocator = worker.allocator.full_to_swa_index_mapping, worker.allocator
    kept = mapping[worker.slots(second, 0, 48).long()].clone()
    slots = worker.slots(first, 0, 48).long()
    allocator.free_swa(slots[:33])  # two pages, and one slot of a third
    assert not mapping[slots].any()
    assert mapping[worker.slots(second, 0, 48).long()].eq(kept).all()


def copies_hold_what_is_mapped(page_size: int = 16, chunk: int = 8) -> None:
    """A CPU copy of a request with evicted tokens has rows only for the others, and loads them."""
    shape = Shape(window=16, page_size=page_size, swa_tokens=512, full_tokens=1024, context=1024)
    worker = DecodeWorker(shape)
    witness = Witness(worker)
    for part in (worker.pool.full_kv_pool, worker.pool.swa_kv_pool):
        part.cpu_offloading_chunk_size = chunk
    req = worker.submit(200, 40)
    for _ in range(30):
        worker.step()
    length = worker.committed(req)
    slots = worker.slots(req, 0, length).long()
    copy = worker.allocator.get_cpu_copy(slots)
    rows = sum(len(pieces[0]) for pieces in copy["swa"][0])
    assert rows == length - worker.evicted(req) < length
    assert sum(len(pieces[0]) for pieces in copy["full"][0]) == length
    swa = worker.allocator.full_to_swa_index_mapping[slots]
    tail = windows.tail_length(length, 16, page_size)
    assert tail < rows, "the new tail is to be shorter than the copy"
    worker.allocator.full_to_swa_index_mapping[slots[: length - tail]] = 0
    buffers = [*worker.pool.swa_kv_pool.k_buffer, *worker.pool.swa_kv_pool.v_buffer]
    for buffer in buffers:
        buffer.zero_()
    worker.allocator.load_cpu_copy(copy, slots)
    assert not buffers[0][swa[: length - tail]].any(), "rows that are not mapped were written"
    worker.allocator.full_to_swa_index_mapping[slots] = swa
    req_evicted = length - tail
    assert req_evicted > worker.evicted(req)
    witness.check()


def the_bound_holds(page_size: int) -> None:
    """A request that runs alone needs for its next step what admission expects, and never more.

    It is decoded as under overlap scheduling, where a step begins before the last one's token is
    known, so that stock evicts one token less.
    """
    shape = Shape(window=100, page_size=page_size, swa_tokens=1024, full_tokens=1024, context=1024)
    worker = DecodeWorker(shape)
    req = worker.submit(200, 500)
    known = type(req).seqlen
    type(req).seqlen = property(lambda req: known.fget(req) - 1)
    needed = []
    try:
        while not worker.counts.finished:
            worker.step()
            if worker.batch.reqs:
                pages = windows.ceil_align(worker.allocated(req) + 1, page_size)
                needed.append(pages - worker.evicted(req))
    finally:
        type(req).seqlen = known
    limit = bound(worker.queue)
    assert limit - page_size <= max(needed) <= limit, (max(needed), limit)


def the_bound_holds_with_drafts(page_size: int) -> None:
    """As `the_bound_holds`, with a step of 8 draft tokens, 5 steps of the draft model, topk 4."""
    shape = Shape(
        window=128,
        page_size=page_size,
        swa_tokens=4096,
        full_tokens=8192,
        context=8192,
        over_allocation=2 * 4 * windows.ceil_align(5 + page_size - 1, page_size),
        reserved=0,
        draft=(8, 5, 4),
    )
    worker = DecodeWorker(shape)
    req = worker.submit(200, 3000)
    held = []
    for _ in range(500):
        worker.step()
        if worker.batch.reqs:
            held.append(worker.allocated(req) - worker.evicted(req))
    assert worker.counts.finished
    limit = bound(worker.queue)
    # Newer releases evict by tokens, not by steps, and hold less than the bound.
    expected = {1: 1194, 64: 2304}[page_size] + kept_margin(page_size)
    assert 260 < max(held) <= limit == expected, (max(held), limit)


def idle_is_served(page_size: int = 64, over_allocation: int = 0) -> None:
    """Requests without ``max_tokens`` on an idle server: all served, one after the other."""
    outcome = alone_without_limit(page_size, over_allocation)
    assert (outcome["first"], outcome["finished"], outcome["refused"]) == (1, 3, 0), outcome
    assert outcome["order"] == ["r0", "r1", "r2"], outcome


def an_idle_rank_is_served() -> None:
    """Of data-parallel attention: a rank is busy and retracts, and the other one, idle, serves."""
    shape = Shape(
        window=128, page_size=1, swa_tokens=160, running=4, reserved=0, layout="attention"
    )
    busy = DecodeWorker(shape)
    for _ in range(3):
        busy.submit(20, 60)
    for _ in range(30):
        busy.step()
    assert busy.batch.reqs
    outcome = alone_without_limit(1, layout="attention")
    assert (outcome["first"], outcome["finished"], outcome["refused"]) == (1, 3, 0), outcome
    assert busy.batch.reqs
    busy.run(300)
    assert busy.counts.finished == 3
    assert busy.counts.retractions, "one is to be retracted"


def idle_is_served_where_stock_never_evicts() -> None:
    """With a window of 1: a request is admitted only if it can decode to its end."""
    shape = Shape(
        window=1,
        page_size=1,
        swa_tokens=300,
        full_tokens=4096,
        context=2048,
        running=1,
        in_transfer=1,
        reserved=0,
    )
    evicts = eviction_interval(1, 1) < NEVER
    worker = DecodeWorker(shape)
    worker.submit(50, 400)
    worker.run(500)
    assert worker.counts.finished == int(evicts), (worker.counts, worker.rejected)
    assert len(worker.order) == int(evicts)
    fits = worker.submit(50, 200)
    worker.queue.queue = [entry for entry in worker.queue.queue if entry.req is fits]
    worker.run(300)
    assert worker.counts.finished == 1 + int(evicts)


def idle_is_served_beside_long_transfers(page_size: int, swa_tokens: int, served: bool) -> None:
    """Requests stay in transfer while the one of an idle server decodes: it still ends.

    Args:
        page_size: in tokens.
        swa_tokens: size of the sliding-window pool.
        served: whether that holds the request and all that may be in transfer meanwhile.
    """
    shape = Shape(
        window=100,
        page_size=page_size,
        swa_tokens=swa_tokens,
        full_tokens=8192,
        context=2048,
        running=2,
        in_transfer=2,
        reserved=24,
    )
    worker = DecodeWorker(shape)
    first = worker.submit(500, 1000)
    for _ in range(3):
        worker.submit(200, 2)
    for _ in range(900):
        for entry in worker.transfers.queue:
            if entry.req is not first:  # prefill takes its time
                worker.transfers.since[entry.req.rid] = worker.counts.steps + 1
        worker.step()
        if len(first.output_ids) > 700:
            break
    assert (len(first.output_ids) > 700) == served, worker.rejected
    assert first.rid not in worker.rejected or first.rid not in worker.order, "began and failed"
    assert not served or len(worker.transfers.queue) == 3, "others are to be in transfer"


def goes_on_after_a_retraction(page_size: int) -> None:
    """Two requests that fit one by one, but not together to their ends: both end, none refused.

    In tensors: at page sizes above 1 what the host's pool has no room for is stock's to abort.
    """
    shape = Shape(
        window=200,
        page_size=page_size,
        swa_tokens=256,
        full_tokens=4096,
        context=1024,
        reserved=0,
        backup="cpu_tensor",
    )
    worker = DecodeWorker(shape)
    witness = Witness(worker)
    for _ in range(2):
        worker.submit(10, 200)
    worker.run(600)
    assert worker.counts.retractions, "one is to be retracted"
    assert not worker.rejected
    assert worker.counts.finished == 2
    witness.check_drained()


def the_host_backs_the_window_up(page_size: int) -> None:
    """What stock's backup in the host's pool copies of a request is mapped, and is its window."""
    shape = Shape(
        window=16, page_size=page_size, swa_tokens=512, full_tokens=1024, context=1024, reserved=0
    )
    worker = DecodeWorker(shape)
    reqs = [worker.submit(prompt, 60) for prompt in (200, 31, 5)]
    mapping = worker.allocator.full_to_swa_index_mapping
    for step in range(40):
        worker.step()
        if step == 20:
            retracted = worker.retract()
            assert retracted
            worker.admit()
            assert not worker.queue.retracted_queue, "each is to be resumed"
        for req in reqs if step == 20 else worker.batch.reqs:
            length = worker.committed(req)
            _, transfers = worker.tree_cache._retraction_device_transfers(req)
            start = max(0, length - 16) // page_size * page_size
            expected = mapping[worker.slots(req, start, length).long()]
            named = transfers[0].device_indices[: length - start]
            assert (named > 0).all()
            assert expected.eq(named).all()


def _kept_in_tensors(worker: DecodeWorker) -> int:
    """Tokens of retracted requests whose KV is in tensors on the host, from 0.5.18 on."""
    kept = 0
    for req in worker.queue.retracted_queue:
        holder = req if hasattr(req, "retraction_backup") else req.kv
        if getattr(getattr(holder, "retraction_backup", None), "cpu_tensors", None) is not None:
            kept += req.seqlen - 1
    return kept


def none_fails_for_the_host(
    swa_tokens: int = 6000, prompt: int = 1000, new: int = 400, full_tokens: int = 262_144
) -> None:
    """Where retracted KV exceeds the host's pool, which stock never fills: each request ends."""
    shape = Shape(
        window=128,
        page_size=1,
        swa_tokens=swa_tokens,
        full_tokens=full_tokens,
        context=prompt + new + 512,
    )
    worker = DecodeWorker(shape)
    for _ in range(64):
        worker.submit(prompt, new)
    in_tensors = 0
    for _ in range(40 * new):
        if worker.idle:
            break
        worker.step()
        in_tensors = max(in_tensors, _kept_in_tensors(worker))
    assert worker.idle, "requests are left"
    Witness(worker).check_drained()
    assert (worker.counts.finished, worker.counts.aborted) == (64, 0), worker.counts
    assert in_tensors, "more is to be retracted than the host's pool holds"
