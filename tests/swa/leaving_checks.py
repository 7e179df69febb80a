"""Checks of taking the swa patches off while requests are served."""

from __future__ import annotations

import time

import sglang_perf_patches
from sglang_perf_patches.live import engine
from tests.proof.swa.pool_invariants import Witness
from tests.proof.swa.rig import DecodeWorker
from tests.proof.swa.shape import Shape


def a_long_request_is_served_to_its_end(page_size: int) -> None:
    """A prompt that stock's pool can't hold keeps the patch on until it ends; then it is refused.

    On the releases before 0.5.12, and at page size 1, where such prompts are served by us alone.
    """
    worker = _worker(page_size, swa_tokens=512)
    for _ in range(2):
        worker.submit(1000, 30)
    worker.step()
    worker.step()
    assert len(worker.batch.reqs) == 2
    waiting = _leave()
    assert "can't hold at full length" in waiting, waiting
    assert _rule(worker), "the patch is to stay on"
    for _ in range(40):
        worker.step()
    assert worker.counts.finished == 2, worker.rejected
    _wait()
    _stocks(worker, 1000)


def an_aborted_request_keeps_nothing_on(page_size: int) -> None:
    """A failed transfer ends a long request too, and so does an abort that somebody still holds."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    worker = _worker(page_size, swa_tokens=512)
    worker.submit(1000, 30)
    kept = worker.submit(900, 30)
    worker.admit()
    assert _leave()
    while worker.transfers.queue:
        req = worker.abort_in_transfer(0)
        if req is kept:
            req.finished_reason = FINISH_ABORT("the client left")
    del req
    _wait()
    _stocks(worker, 1000)


def short_requests_keep_nothing_on(page_size: int) -> None:
    """Tails of requests that stock can serve as well are left to it in the middle of things."""
    worker = _worker(page_size, swa_tokens=2048)
    for _ in range(3):
        worker.submit(300, 40)
    worker.step()
    worker.step()
    worker.submit(300, 40)
    worker.admit()
    assert len(worker.transfers.queue) + len(worker.batch.reqs) == 4
    sglang_perf_patches.deactivate()
    _wait()
    worker.retract()  # what a patch admitted is copied, and loaded, by stock's code
    for _ in range(120):
        worker.step()
    assert worker.counts.finished == 4, worker.rejected
    _stocks(worker, 5000)


def a_copy_is_loaded_first(page_size: int, backup: str = "cpu_tensor") -> None:
    """A retracted request whose copy is of our own making keeps the patch on until it runs again.

    That is a copy with rows missing before 0.5.12, and from 0.5.19 on one that the host's pool
    had no room for.
    """
    worker = _worker(page_size, swa_tokens=2048, backup=backup)
    reqs = [worker.submit(300, 60) for _ in range(3)]
    for _ in range(12):
        worker.step()
    if backup == "default":
        for entry in worker.tree_cache.host_pool_group.entries:
            entry.host_pool.slots = entry.host_pool.slots[:0]
            entry.host_pool.size = 0
    assert worker.retract()
    del reqs
    waiting = _leave()
    assert "whose copy stock can't load" in waiting, waiting
    worker.admit()
    assert not worker.queue.retracted_queue, "each is to be resumed"
    _wait()
    for _ in range(120):
        worker.step()
    assert worker.counts.finished == 3, worker.rejected
    _stocks(worker, 5000)


def _worker(page_size: int, swa_tokens: int, backup: str = "cpu_tensor") -> DecodeWorker:
    shape = Shape(
        window=32,
        page_size=page_size,
        swa_tokens=swa_tokens,
        full_tokens=4096,
        context=4096,
        reserved=0,
        transfer_steps=1,
        backup=backup,
    )
    sglang_perf_patches.deactivate()
    sglang_perf_patches.activate("swa")
    worker = DecodeWorker(shape)
    assert worker.queue._uses_swa_tail_prealloc()
    if backup == "default":
        assert worker.tree_cache.host_pool_group is not None, "this release has none"
    return worker


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


def _wait() -> None:
    deadline = time.monotonic() + 300
    while engine.report() is not None:
        assert time.monotonic() < deadline, engine.report()
        time.sleep(0.02)


def _rule(worker: DecodeWorker) -> bool:
    kind = type(worker.queue)
    return hasattr(kind, "_uses_swa_tail_prealloc") and bool(worker.queue._uses_swa_tail_prealloc())


def _stocks(worker: DecodeWorker, too_long: int) -> None:
    """Pools are whole, and the queue admits by stock's own rule, and refuses what is too long."""
    if worker.idle:
        Witness(worker).check_drained()
    worker.end_all()
    worker.rejected.clear()
    req = worker.submit(too_long, 4)
    assert req.rid in worker.rejected, "stock refuses it"
    again = worker.submit(100, 4)
    worker.run(60)
    assert again.rid not in worker.rejected
    Witness(worker).check_drained()
