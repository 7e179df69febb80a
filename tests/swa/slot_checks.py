"""Checks of the slots that the swa patches map, and of copies on the host, on one release."""

import torch
from checks import made

from sglang_perf_patches.sets.swa import window as windows
from tests.proof.swa.pool_invariants import Witness
from tests.proof.swa.rig import DecodeWorker

TINY = {"swa_tokens": 512, "full_tokens": 1024, "context": 1024}


def stale_slots_are_unmapped(page_size: int = 16) -> None:
    """New slots before the tail have no mapping, whatever an earlier owner left (#25805)."""
    worker = made(window=16, page_size=page_size, **TINY)
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
    worker = made(window=64, page_size=page_size, reserved=0, **TINY)
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
    worker = made(window=16, page_size=page_size, **TINY)
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
    assert length - tail > worker.evicted(req)
    witness.check()


def goes_on_after_a_retraction(page_size: int) -> None:
    """Two requests that fit one by one, but not together to their ends: both end, none refused.

    In tensors: at page sizes above 1 what the host's pool has no room for is stock's to abort.
    """
    worker = made(
        window=200,
        page_size=page_size,
        swa_tokens=256,
        full_tokens=4096,
        context=1024,
        reserved=0,
        backup="cpu_tensor",
    )
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
    worker = made(window=16, page_size=page_size, reserved=0, **TINY)
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
    pools = {"swa_tokens": swa_tokens, "full_tokens": full_tokens}
    worker = made(window=128, page_size=1, context=prompt + new + 512, **pools)
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
