"""Checks of the swa patches on one release, over sglang's own queue, pools and batch."""

import gc
import inspect
import time
from types import SimpleNamespace
from typing import Any

import sglang_perf_patches
from sglang_perf_patches.live import engine
from sglang_perf_patches.live.switch import callee_of
from sglang_perf_patches.sets.swa import window as windows
from sglang_perf_patches.sets.swa.idle_admission import (
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

SMALL = {"swa_tokens": 1024, "full_tokens": 4096, "context": 1024}


def made(**shape: Any) -> DecodeWorker:
    return DecodeWorker(Shape(**shape))


def refuses_what_never_fits(page_size: int = 64) -> None:
    """A tail, or a prompt and the reserve, beyond a whole pool: a 400, no crash and no silence."""
    worker = made(window=512, page_size=page_size, swa_tokens=256, full_tokens=2048, context=4096)
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
    worker = made(window=128, page_size=64, swa_tokens=1024, full_tokens=65536, context=8192)
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
    worker = made(
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
    queue = made(window=32, page_size=page_size, **SMALL).queue
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
        setattr(queue, name, object.__new__(type("Other", (type(kept),), {})))
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
    queue = made(window=32, page_size=1, layout=layout, **SMALL).queue
    assert windows.unserved_by_tails(queue) is None
    for drafts in (None, object()):
        queue.draft_token_to_kv_pool = drafts
        expected = layout == "stages" or (layout != "one" and drafts is not None)
        assert bool(windows.unserved(queue)) == expected, (layout, drafts)


def without_a_window_is_stock(page_size: int) -> None:
    """A queue whose model has no window allocates full length, as stock does."""
    worker = made(window=None, page_size=page_size, **SMALL)
    assert not worker.queue._uses_swa_tail_prealloc() or page_size > 1
    req = worker.submit(300, 4)
    worker.queue._pre_alloc(req)
    assert worker.evicted(req) == 0
    assert worker.allocator.swa_available_size() == 1024 - -(-300 // page_size) * page_size


def a_prefix_falls_back(page_size: int = 16) -> None:
    """Allocation behind a prefix is stock's: full length in both pools, nothing evicted."""
    worker = made(window=8, page_size=page_size, **SMALL)
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


def the_bound_holds(page_size: int) -> None:
    """A request that runs alone needs for its next step what admission expects, and never more.

    It is decoded as under overlap scheduling, where a step begins before the last one's token is
    known, so that stock evicts one token less.
    """
    worker = made(window=100, page_size=page_size, **SMALL | {"full_tokens": 1024})
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
    worker = made(
        window=128,
        page_size=page_size,
        swa_tokens=4096,
        full_tokens=8192,
        context=8192,
        over_allocation=2 * 4 * windows.ceil_align(5 + page_size - 1, page_size),
        reserved=0,
        draft=(8, 5, 4),
    )
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
    busy = made(window=128, page_size=1, swa_tokens=160, running=4, reserved=0, layout="attention")
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
    evicts = eviction_interval(1, 1) < NEVER
    one = {"running": 1, "in_transfer": 1, "reserved": 0}
    worker = made(window=1, page_size=1, swa_tokens=300, full_tokens=4096, **one)
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

    It is `served` if the pool holds it and all that may be in transfer meanwhile.
    """
    two = {"running": 2, "in_transfer": 2, "reserved": 24}
    worker = made(window=100, page_size=page_size, swa_tokens=swa_tokens, full_tokens=8192, **two)
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


def the_rule_stays_with_its_queue(page_size: int, backup: str = "cpu_tensor") -> None:
    """Deactivated, the patches serve what they admitted, and go when the queue does.

    That is a prompt that stock's pool can't hold (before 0.5.12, and at page size 1), and a
    retracted request whose copy is of our own making: one with rows missing before 0.5.12, and from
    0.5.19 on one that the host's pool had no room for.
    """
    gc.collect()  # queues of earlier jobs
    sglang_perf_patches.deactivate()
    assert engine.report() is None, engine.report()
    sglang_perf_patches.activate("swa")
    worker = made(
        window=32,
        page_size=page_size,
        swa_tokens=512,
        full_tokens=4096,
        context=4096,
        reserved=0,
        backup=backup,
    )
    assert worker.queue._uses_swa_tail_prealloc()
    if backup == "default":
        assert worker.tree_cache.host_pool_group is not None, "this release has none"
    for _ in range(2):
        worker.submit(1000, 30)
    for _ in range(12):
        worker.step()
    assert len(worker.batch.reqs) == 2
    if backup == "default":
        for entry in worker.tree_cache.host_pool_group.entries:
            entry.host_pool.slots = entry.host_pool.slots[:0]
            entry.host_pool.size = 0
    assert worker.retract()
    waiting = _leave()
    assert "no queue is left" in waiting, waiting
    assert worker.queue._uses_swa_tail_prealloc(), "the patch is to stay on"
    for _ in range(120):
        worker.step()
    assert worker.counts.finished == 2, worker.rejected
    Witness(worker).check_drained()
    worker.end_all()
    del worker
    gc.collect()
    deadline = time.monotonic() + 300
    while engine.report() is not None:
        assert time.monotonic() < deadline, engine.report()
        time.sleep(0.02)


def _leave() -> str:
    """Deactivate; what the patches that make the rule for tails wait for, one and all."""
    sglang_perf_patches.deactivate()
    report = engine.report()
    assert report is not None, "nothing waits"
    rule = (report.of("swa.tail-prealloc"), report.of("swa.page-size-1"))
    reasons = [patch.reason for patch in rule if patch.state == "live"]
    assert reasons, rule
    assert all("waits until" in reason for reason in reasons), rule
    return "; ".join(reasons)
