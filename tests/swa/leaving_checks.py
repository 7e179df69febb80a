"""Checks of taking the swa patches off while requests are served."""

import gc
import time

import sglang_perf_patches
from sglang_perf_patches.live import engine
from tests.proof.swa.pool_invariants import Witness
from tests.proof.swa.rig import DecodeWorker
from tests.proof.swa.shape import Shape


def the_rule_stays_with_its_queue(page_size: int, backup: str = "cpu_tensor") -> None:
    """Deactivated, the patches serve what they admitted, and go when the queue does.

    That is a prompt that stock's pool can't hold (before 0.5.12, and at page size 1), and a
    retracted request whose copy is of our own making: one with rows missing before 0.5.12, and from
    0.5.19 on one that the host's pool had no room for.
    """
    worker = _worker(page_size, backup)
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


def _worker(page_size: int, backup: str) -> DecodeWorker:
    shape = Shape(
        window=32,
        page_size=page_size,
        swa_tokens=512,
        full_tokens=4096,
        context=4096,
        reserved=0,
        transfer_steps=1,
        backup=backup,
    )
    gc.collect()  # queues of earlier jobs
    sglang_perf_patches.deactivate()
    assert engine.report() is None, engine.report()
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
