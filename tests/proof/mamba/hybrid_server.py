"""A hybrid model's server without its model: real scheduler methods, trees, pools and batches.

What decides about memory is the installed sglang's own: how ``Scheduler`` makes a prefill batch,
``PrefillAdder``, ``ScheduleBatch``, ``Req``, the prefix caches, ``HybridReqToTokenPool``, its slots
and the allocator of KV. A stand-in takes the place of the forward pass, which yields one token for
each request, and of what a scheduler has besides. It writes in place of a state what tells the
tokens that the state is of, and finds it again where a request goes on.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from sglang_perf_patches.verify.comparing import require
from sglang_perf_patches.verify.stock import MEMORY, called, takes
from tests.proof import requests
from tests.proof.caches import kv_allocator
from tests.proof.mamba.fake_cuda_graph import Unpinned
from tests.proof.mamba.hybrid_parts import (
    VOCABULARY,
    Launched,
    Results,
    Shape,
    accepted,
    arguments,
    launched,
    prefix_cache,
    schedule_batch,
    scheduler,
    state_pool,
)

END = 2
GRID = 64
"""Tokens between two tracked states."""


class HybridServer:
    """A server whose steps are taken one by one.

    `slots` gives slots for states; `pool`, `kv` and `tree` are the release's. `log` is what was
    decided, step by step, and `slot_kept` the length of it when a step began that left a waiting
    request with a slot, as 0.5.9 does; None if none did.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.ended: list[str] = []
        self.log: list[Any] = []
        self.slot_kept: int | None = None
        self._made = 0
        self._batches = importlib.import_module("sglang.srt.managers.schedule_batch")
        self.pool = self._make_pool()
        self.slots = getattr(self.pool, "mamba_allocator", None) or self.pool.mamba_pool
        self.kv = self._make_kv()
        self.tree = self._make_tree()
        self.scheduler = scheduler(shape, self.pool, self.kv, self.tree)
        self.running = schedule_batch(
            *([], self.pool, self.kv, self.tree),
            enable_overlap=False,
            spec_algorithm=self.scheduler.spec_algorithm,
        )
        self._results = Results(self.tree, self.pool) if shape.takes_results else None
        self._launched: list[Any] = []
        self._sent: list[tuple[int, Any]] = []  # when each request's KV is sent

    def _make_pool(self) -> Any:
        arguments(self.shape)
        return state_pool(self.shape)

    def _make_kv(self) -> Any:
        return kv_allocator(self.shape.page, self.shape.tokens)

    def _make_tree(self) -> Any:
        return prefix_cache(self.shape, self.pool, self.kv)

    @property
    def waiting(self) -> list[Any]:
        queue: list[Any] = self.scheduler.waiting_queue
        return queue

    def submit(self, ids: Sequence[int], new: int) -> Any:
        req = requests.request(
            f"r{self._made}",
            ids,
            sampling={"max_new_tokens": new, "temperature": 0},
            vocab_size=VOCABULARY,
            eos_token_ids={END},
        )
        req.tokenizer = None
        self._made += 1
        self.waiting.append(req)
        return req

    def abort(self, req: Any) -> None:
        """End a request that waits or runs, as when its client is gone."""
        self._settle()
        if req.finished():
            return
        if req in self.waiting:
            self.waiting.remove(req)
            requests.release(req, self.tree, keep=False)
            return
        req.finished_reason = self._batches.FINISH_ABORT("gone")
        requests.release(req, self.tree, keep=False)
        self._filter()

    def retract(self) -> None:
        """Retract as stock does when KV is short; it aborts the only one that runs."""
        self._settle()
        if not self.running.reqs:
            return
        arguments_of_it = self.scheduler.server_args
        retracted, *_ = called(self.running.retract_decode, server_args=arguments_of_it)
        self.waiting[:0] = retracted
        self.running.batch_is_full = False  # as wherever stock's batch gets smaller
        self._change()

    def step(self) -> None:
        """One round of the scheduler: a prefill if one can be made, else a decode."""
        began = len(self.log)
        if self.shape.transfer:  # as in each round of a prefill server
            self.running.batch_is_full = False
        with Unpinned():
            if not self.shape.overlap:
                self._settle()
            batch = self._prefill_batch()
            self._change(None if batch is None else [req.rid for req in batch.reqs])
            if batch is not None:
                self._forward(batch)
                self._settle()
                chunked = self.scheduler.chunked_req
                self._launched = [req for req in batch.reqs if req is not chunked]
                if not self.shape.transfer:
                    self._merge(batch)
            elif self._results is not None:
                self._launch_and_settle(self._results)
            else:
                self._settle()
                if self.running.reqs:
                    self._decode()
        self.log.append(self.state())
        self.check_slots()
        is_kept = any(held(req).mamba_pool_idx is not None for req in self.waiting)
        if self.slot_kept is None and is_kept:
            self.slot_kept = began

    def check_slots(self) -> None:
        chunked = self.scheduler.chunked_req
        owned = [int(slot) for slot in self.slots.free_slots]
        owned += [int(slot) for slot in self.tree.all_mamba_values_flatten()]
        sent = [*self._launched, *(req for _, req in self._sent)]
        for req in {*self.waiting, *self.running.reqs, *sent, *([chunked] if chunked else [])}:
            if req.finished():
                continue
            if held(req).mamba_pool_idx is not None:
                owned.append(int(held(req).mamba_pool_idx))
            if held(req).mamba_ping_pong_track_buffer is not None:
                # A lazy request's second buffer is -1 until it is needed.
                owned += [int(n) for n in held(req).mamba_ping_pong_track_buffer if n >= 0]
        first = min(owned, default=0)
        is_each = sorted(owned) == list(range(first, first + self.shape.slots))
        require(is_each, f"of {self.shape.slots} slots these are owned: {sorted(owned)}")

    def state(self) -> tuple[Any, ...]:
        """Free slots and KV, what the tree could free and what is locked in it."""
        return (
            int(self.slots.available_size()),
            int(self.kv.available_size()),
            int(self.tree.full_evictable_size()),
            int(self.tree.mamba_evictable_size()),
            int(self.tree.mamba_protected_size()),
        )

    def drain(self, most: int = 2000) -> None:
        """Step until nothing waits or runs; a RuntimeError if something does after `most`."""
        for _ in range(most):
            if self.is_idle():
                return
            self.step()
        raise RuntimeError(f"{len(self.waiting)} wait and {len(self.running.reqs)} run for ever")

    def is_idle(self) -> bool:
        sending = self._sent or (self.shape.transfer and self._launched)
        return not (self.waiting or self.running.reqs or sending or self.scheduler.chunked_req)

    def check_drained(self) -> None:
        """See that all is the tree's, that nothing of it is locked, and that all can be had."""
        tree, shape = self.tree, self.shape
        tree.sanity_check()
        for pool, kind, name, size in (
            (self.slots, "mamba", "slots", shape.slots),
            (self.kv, "full", "tokens", shape.tokens),
        ):
            free = pool.available_size()
            cached = getattr(tree, f"{kind}_evictable_size")()
            locked = getattr(tree, f"{kind}_protected_size")()
            told = f"{free} of {size} {name} are free, {cached} cached, {locked} locked"
            require(not locked and free + cached == size, f"after a drain {told}")
        kinds = importlib.import_module(f"{MEMORY}.base_prefix_cache")
        tree.evict(kinds.EvictParams(num_tokens=shape.tokens, mamba_num=shape.slots))
        free = self.state()[:2]
        require(free == (shape.slots, shape.tokens), f"after the tree is emptied, free are {free}")
        rows = self.pool.available_size()
        require(rows == shape.rows, f"{rows} of {shape.rows} rows are free")

    def _prefill_batch(self) -> Any:
        scheduler = self.scheduler
        if scheduler.chunked_req is not None:
            self._cache(scheduler.chunked_req, chunked=True)
        function = scheduler._get_new_batch_prefill_raw
        if takes(function, "running_batch"):
            batch, self.running = function(
                prefill_delayer_single_pass=None, running_batch=self.running
            )
            return batch
        scheduler.running_batch = self.running
        return function(prefill_delayer_single_pass=None)

    def _settle(self) -> None:
        """Take the results of the last prefill: a token each, and the cache."""
        launched, self._launched = self._launched, []
        for due, req in [each for each in self._sent if each[0] <= len(self.log)]:
            self._sent.remove((due, req))
            self._end(req)
        for req in launched:
            self._token(req)
            if not req.finished():
                self._cache(req)
                if self.shape.transfer:
                    self._sent.append((len(self.log) + 2 * self.shape.transfer, req))
        self._filter()

    def _merge(self, batch: Any) -> None:
        chunked = self.scheduler.chunked_req
        excluded = [chunked] if chunked is not None else []
        batch.output_ids = torch.full((len(batch.reqs),), 5, dtype=torch.int64)
        called(batch.filter_batch, reqs_to_exclude=excluded, chunked_req_to_exclude=excluded)
        if excluded:
            self.running.batch_is_full = False
        if batch.reqs and not self.running.reqs:
            self.running = batch
        elif batch.reqs:
            self.running.merge_batch(batch)

    def _decode(self) -> None:
        batch = self.running
        if not batch.check_decode_mem():
            self.retract()
        batch.prepare_for_decode()
        batch.output_ids = torch.full((len(batch.reqs),), 5, dtype=torch.int64)
        for req in batch.reqs:
            self._goes_on(req, len(_ids(req)) - 1, len(_ids(req)))
        for req in list(batch.reqs):
            self._token(req)
        self._filter()

    def _launch_and_settle(self, results: Results) -> None:
        """A decode, or a verify of drafts, that is launched before the last results are taken."""
        if not self.running.check_decode_mem():
            self._settle()
            if not self.running.check_decode_mem():
                self.retract()
        step = launched(self.running, self.shape.drafts) if self.running.reqs else None
        self._settle()
        if step is not None:
            for req in step.batch.reqs:
                if not req.finished():
                    self._take(req, step, results)
        self._filter()

    def _take(self, req: Any, step: Launched, results: Results) -> None:
        count = accepted(req, len(req.output_ids), self.shape.drafts)
        self._verify_one(
            req, [*_ids(req), *[5] * count], count, step.into[step.batch.reqs.index(req)]
        )
        results.take(req, step, count, self.shape.drafts)
        if req.finished():
            self.ended.append(req.rid)

    def _verify_one(self, req: Any, ids: Sequence[int], count: int, slot: int) -> None:
        """Compute the state before the last of a request's tokens, `count` of which are new."""
        start, end = len(ids) - 1 - count, len(ids) - 1
        if not req.finished():
            self._goes_on(req, start, end, ids)
        boundary = end // GRID * GRID
        if self.shape.tracked and boundary > start:
            self._states()[:, slot] = told(ids[:boundary])

    def _filter(self) -> None:
        before = len(self.running.reqs)
        self.running.filter_batch()
        if len(self.running.reqs) < before:
            self.running.batch_is_full = False

    def _forward(self, batch: Any) -> None:
        """In the place of a prefill: copies of states that were put off, then states of tokens."""
        states = self._states()
        source = getattr(batch, "mamba_cow_src_indices", None)
        if source is not None and len(source):
            states[:, batch.mamba_cow_dst_indices.long()] = states[:, source.long()]
        for row, req in enumerate(batch.reqs):
            start = batch.prefix_lens[row]
            self._goes_on(req, start, start + batch.extend_lens[row])
            if self.shape.tracked and batch.mamba_track_mask[row]:
                slot = int(batch.mamba_track_indices[row])
                states[:, slot] = told(_ids(req)[: held(req).mamba_last_track_seqlen])

    def _goes_on(self, req: Any, start: int, end: int, ids: Sequence[int] = ()) -> None:
        states, slot, ids = self._states(), int(held(req).mamba_pool_idx), ids or _ids(req)
        is_right = not start or float(states[0, slot].flatten()[0]) == told(ids[:start])
        require(is_right, f"{req.rid} goes on after {start} tokens with another state")
        states[:, slot] = told(ids[:end])

    def _states(self) -> Any:
        return self.pool.mamba_pool.mamba_cache.temporal

    def _token(self, req: Any) -> None:
        req.output_ids.append(5)
        if len(req.output_ids) >= req.sampling_params.max_new_tokens:
            self._end(req)

    def _end(self, req: Any) -> None:
        req.finished_reason = self._batches.FINISH_LENGTH(len(req.output_ids))
        requests.release(req, self.tree, keep=True)
        self.ended.append(req.rid)

    def _cache(self, req: Any, chunked: bool = False) -> None:
        common = importlib.import_module(f"{MEMORY}.common")
        if hasattr(common, "checkpoint_kv_cache"):
            common.checkpoint_kv_cache(req, self.tree)
        else:
            called(self.tree.cache_unfinished_req, req, chunked=chunked)

    def _change(self, *what: Any) -> None:
        self.log.append((*what, [req.rid for req in self.waiting], len(self.running.reqs)))


def held(req: Any) -> Any:
    record = getattr(req, "kv", None)
    return record if hasattr(record, "mamba_pool_idx") else req


def _ids(req: Any) -> list[int]:
    return [*req.origin_input_ids, *req.output_ids]


def told(ids: Sequence[int]) -> float:
    """What stands in the place of the state after these tokens."""
    return float(zlib.crc32(repr(list(ids)).encode()) % (1 << 22) + 1)
