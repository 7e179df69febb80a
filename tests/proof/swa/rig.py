"""The decode side of a disaggregated server without its model: real queue, pools and batch, on CPU.

What decides about memory is the installed sglang's own: ``DecodePreallocQueue``,
``SWATokenToKVPoolAllocator``, ``SWAKVPool``, ``ScheduleBatch``, ``Req``, and the functions that
allocate and release. A stand-in takes the place of the scheduler around them, of the transfer
(which succeeds after a given number of steps) and of the forward pass (which yields one token for
each running request).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.disaggregation.decode import DecodeReqToTokenPool
from sglang.srt.managers import schedule_batch
from sglang.srt.mem_cache import common
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_perf_patches.verify import stock
from tests.proof import requests
from tests.proof.swa import host_pool
from tests.proof.swa.decode_parts import batch, pools, publish, queue, scheduler, tree_cache
from tests.proof.swa.shape import Counts, Shape


class DecodeWorker:
    """A decode worker whose steps are taken one by one.

    `rejected` has the requests that the queue answered with an error, and the message; `order` the
    ids in the order of admission. `written` is called with ``(request, first position, end
    position)`` when KV of a range is due: after a transfer, and after each decode step.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.counts = Counts()
        self.rejected: dict[str, str] = {}
        self.order: list[str] = []
        self.written: Callable[[Any, int, int], None] = lambda *_: None
        self.server_args = publish(shape)
        self.rows = DecodeReqToTokenPool(
            size=shape.running,
            max_context_len=shape.context,
            device="cpu",
            enable_memory_saver=False,
            pre_alloc_size=shape.in_transfer,
        )
        self.pool, self.allocator = pools(shape, self.server_args.kv_cache_dtype)
        ratio = host_pool.resolved(self.rows, self.allocator)
        self.tree_cache = tree_cache(shape, self.rows, self.allocator, ratio is not None)
        if ratio is not None:
            host_pool.attach(self.tree_cache, self.pool, ratio)
        # In the place of ``DecodeTransferQueue``: what the prealloc queue reads, and since when.
        self.transfers = SimpleNamespace(queue=[], enable_staging=False, since={})
        self.batch = batch(self)
        self.scheduler = scheduler(self)
        self.queue = queue(self)
        self._made = 0

    def submit(self, prompt: int | Sequence[int], max_new_tokens: int) -> Any:
        """Queue a request of so many, or of these, prompt tokens; returns sglang's ``Req``."""
        rid = f"r{self._made}"
        self._made += 1
        req = requests.request(
            rid,
            [1] * prompt if isinstance(prompt, int) else prompt,
            sampling={"max_new_tokens": max_new_tokens, "ignore_eos": True},
            vocab_size=32000,
            eos_token_ids=set(),
            bootstrap_host="2.2.2.2",  # marks a fake transfer in every release
            bootstrap_port=1,
            bootstrap_room=self._made,
        )
        self.queue.add(req)
        return req

    def abort_in_transfer(self, index: int) -> Any:
        """End the transfer of the `index`-th request in transfer as failed; returns the request."""
        entry = self.transfers.queue.pop(index)
        self.scheduler.metadata_indices.free(entry.metadata_buffer_index)
        requests.release(entry.req, self.tree_cache, keep=False)
        self.counts.aborted += 1
        return entry.req

    def live(self) -> list[Any]:
        return [
            *(entry.req for entry in self.transfers.queue),
            *self.scheduler.waiting_queue,
            *self.batch.reqs,
        ]

    @property
    def idle(self) -> bool:
        return not (self.live() or self.queue.queue or self.queue.retracted_queue)

    def step(self) -> None:
        self.counts.steps += 1
        self.receive()
        self.admit()
        self.start_running()
        self.decode_one()

    def admit(self) -> list[Any]:
        """Resume retracted requests; if none is left, admit new ones. Returns the new ones."""
        agreed = self._agreed(self.queue.retracted_queue)
        resumed = self.queue.resume_retracted_reqs(*([] if agreed is None else [agreed]))
        self.scheduler.waiting_queue.extend(resumed)
        if self.queue.retracted_queue:
            return []
        agreed = self._agreed([entry.req for entry in self.queue.queue])
        entries, _ = self.queue.pop_preallocated(**self._consensus(agreed))
        for entry in entries:
            self.transfers.since[entry.req.rid] = self.counts.steps
            self.order.append(entry.req.rid)
        self.transfers.queue.extend(entries)
        self.counts.peak_admitted = max(self.counts.peak_admitted, len(self.live()))
        return [entry.req for entry in entries]

    def _agreed(self, reqs: Sequence[Any]) -> list[str] | None:
        """Ids on which the stages of a pipeline agree; None for one rank.

        In every other step the newest request has not reached the other stage yet.
        """
        if self.shape.layout != "stages":
            return None
        seen = len(reqs) - (self.counts.steps % 2 and len(reqs) > 1)
        return [req.rid for req in reqs[:seen]]

    def _consensus(self, agreed: list[str] | None) -> dict[str, Any]:
        if agreed is None:
            return {}
        if stock.takes(self.queue.pop_preallocated, "pp_good_rids"):
            return {"pp_good_rids": agreed, "pp_bad_rids": []}
        return {"rids_to_check": agreed}

    def receive(self) -> None:
        """End the transfers that are due, each with its first output token."""
        due = self.counts.steps - self.shape.transfer_steps
        for entry in list(self.transfers.queue):
            if self.transfers.since[entry.req.rid] <= due:
                self.transfers.queue.remove(entry)
                self.scheduler.metadata_indices.free(entry.metadata_buffer_index)
                self.written(entry.req, 0, len(entry.req.origin_input_ids))
                entry.req.output_ids.append(2)
                self.scheduler.waiting_queue.append(entry.req)

    def start_running(self) -> None:
        """Move requests whose KV is there into the batch, in order, as far as it has room."""
        room = self.shape.running - len(self.batch.reqs)
        self.batch.reqs.extend(self.scheduler.waiting_queue[:room])
        del self.scheduler.waiting_queue[:room]

    def decode_one(self) -> None:
        """Decode one token of each running request, retracting some first where memory is short."""
        self.finish([each for each in self.batch.reqs if requests.is_whole(each)])
        if not self.batch.reqs:
            return
        self._tensors()
        if not self.batch.check_decode_mem():
            self.retract()
            self._tensors()
        if not self.batch.reqs:
            return
        self.batch.forward_mode = ForwardMode.DECODE
        self.batch.forward_iter = self.counts.steps
        before = [self.committed(req) for req in self.batch.reqs]
        self._alloc_for_decode()
        for req, length in zip(self.batch.reqs, before, strict=True):
            self._after_decode(req, length)
        self._over_allocate()
        self.counts.tokens += len(self.batch.reqs)

    def retract(self) -> list[Any]:
        retract = self.batch.retract_decode
        retracted, _, aborted = stock.called(retract, server_args=self.server_args)
        self.counts.retractions += len(retracted)
        self.counts.aborted += len(aborted)
        for req in aborted:
            self.rejected[req.rid] = req.to_finish.message
        for req in retracted:
            self.queue.add(req, is_retracted=True)
        return list(retracted)

    def finish(self, reqs: Sequence[Any]) -> None:
        for req in reqs:
            self.batch.reqs.remove(req)
            requests.release(req, self.tree_cache, keep=False)
            self.counts.finished += 1

    def keep(self, *, keep_indices: Sequence[int], **_: Any) -> None:
        """In the place of ``filter_batch``: forget all running requests but these."""
        self.batch.reqs = [self.batch.reqs[index] for index in keep_indices]

    def end_all(self) -> None:
        """End every request at once, as when clients disconnect."""
        while self.transfers.queue:
            self.abort_in_transfer(0)
        for req in self.scheduler.waiting_queue:
            requests.release(req, self.tree_cache, keep=False)
        self.scheduler.waiting_queue.clear()
        self.finish(list(self.batch.reqs))
        self.queue.queue.clear()
        for req in self.queue.retracted_queue:
            self._forget_backup(req)
        self.queue.retracted_queue.clear()

    def run(self, most_steps: int) -> None:
        """Step until nothing is left to do or nothing happens any more, at most so often."""
        for _ in range(most_steps):
            if self.idle:
                return
            before = self._progress()
            self.step()
            if not self.live() and before == self._progress():
                return

    def _progress(self) -> tuple[int, ...]:
        return self.counts.finished, self.counts.aborted, len(self.order)

    def committed(self, req: Any) -> int:
        """Tokens of a request that have KV."""
        return int(_record(req, "kv_committed_len").kv_committed_len)

    def allocated(self, req: Any) -> int:
        """Tokens of a request that have slots."""
        return int(_record(req, "kv_allocated_len").kv_allocated_len)

    def evicted(self, req: Any) -> int:
        """Leading tokens of a request that have no sliding-window KV."""
        record = _record(req, "swa_evicted_seqlen")
        if hasattr(record, "get_evicted_seqlen"):
            return int(record.get_evicted_seqlen(schedule_batch.ComponentType.SWA))
        return int(record.swa_evicted_seqlen)

    def slots(self, req: Any, first: int, end: int) -> Any:
        return self.rows.req_to_token[self._row(req), first:end]

    def _tensors(self) -> None:
        batch = self.batch
        lengths = [self.committed(req) for req in batch.reqs]
        batch.seq_lens = torch.tensor(lengths)
        batch.seq_lens_cpu = torch.tensor(lengths)
        batch.req_pool_indices = torch.tensor([self._row(req) for req in batch.reqs])

    def _row(self, req: Any) -> int:
        return int(_record(req, "req_pool_idx").req_pool_idx)

    def _alloc_for_decode(self) -> None:
        """Have a slot for a token of each running request: over-allocated ones before new ones."""
        reqs = self.batch.reqs
        fresh = [req for req in reqs if self.allocated(req) == self.committed(req)]
        if len(fresh) < len(reqs):
            self.batch.maybe_evict_swa()
            for req in fresh:
                self._extend(req, 1)
            return
        module = common
        if not hasattr(module, "alloc_for_decode"):
            module = importlib.import_module("sglang.srt.mem_cache.allocation")
        before = [self.allocated(req) for req in reqs]
        assert len(module.alloc_for_decode(self.batch, 1)) == len(reqs)
        for req, length in zip(reqs, before, strict=True):
            if self.allocated(req) == length:
                _record(req, "kv_allocated_len").kv_allocated_len = length + 1

    def _over_allocate(self) -> None:
        for req in self.batch.reqs:
            missing = self.committed(req) + self.shape.over_allocation - self.allocated(req)
            page = self.shape.page_size
            if 0 < missing <= self.allocator.available_size() - page * len(self.batch.reqs):
                self._extend(req, missing)

    def _extend(self, req: Any, tokens: int) -> None:
        """Allocate slots behind a request's last one, as speculative decoding does.

        One token is allocated as a decode step does it: for more, stock wants a free page beyond
        those that it takes.
        """
        length = self.allocated(req)
        now, then = torch.tensor([length]), torch.tensor([length + tokens])
        last = self.slots(req, length - 1, length).long()
        if self.shape.page_size == 1:
            slots = self.allocator.alloc(tokens)
        elif tokens == 1:
            slots = self.allocator.alloc_decode(then, then, last)
        else:
            slots = self.allocator.alloc_extend(now, now, then, then, last, tokens)
        assert slots is not None, "the pool is full"
        self.rows.write((self._row(req), slice(length, length + tokens)), slots.to(torch.int32))
        _record(req, "kv_allocated_len").kv_allocated_len = length + tokens

    def _after_decode(self, req: Any, at: int) -> None:
        tokens = self.shape.draft[0] if self.shape.draft else 1
        missing = at + tokens - self.allocated(req)
        if missing > 0:
            self._extend(req, missing)
        req.decode_batch_idx += 1
        _record(req, "kv_committed_len").kv_committed_len = at + tokens
        self.written(req, at, at + tokens)
        req.output_ids.extend([3] * tokens)

    def _forget_backup(self, req: Any) -> None:
        """As stock's scheduler does when a retracted request is aborted, from 0.5.18 on."""
        for name in ("retraction_discard", "discard_kv_cache_backup"):
            if hasattr(common, name):
                from sglang.srt.runtime_context import get_disagg

                backend = get_disagg().disaggregation_decode_retraction_backup
                getattr(common, name)(req, self.tree_cache, backend)


def _record(req: Any, name: str) -> Any:
    return req if hasattr(req, name) else req.kv
