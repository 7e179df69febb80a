"""The decode side of a disaggregated server without its model: real queue, pools and batch, on CPU.

What decides about memory is the installed sglang's own: ``DecodePreallocQueue``,
``SWATokenToKVPoolAllocator``, ``SWAKVPool``, ``ScheduleBatch``, ``Req``, and the functions that
allocate and release. A stand-in takes the place of the scheduler around them, of the transfer
(which succeeds after a given number of steps) and of the forward pass (which yields one token for
each running request).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ..given import MORE, noted
from . import host_pool

_DECODE = "sglang.srt.disaggregation.decode"


@dataclass(frozen=True)
class Shape:
    """The settings of a decode worker.

    Attributes:
        window: sliding window, in tokens; None if the model has none.
        page_size: in tokens.
        swa_tokens: size of the sliding-window pool.
        full_tokens: size of the full-attention pool.
        context: longest sequence, in tokens.
        running: most requests in the batch.
        in_transfer: most requests that are allocated and not in the batch.
        reserved: ``--num-reserved-decode-tokens``.
        transfer_steps: scheduling steps from a request's allocation to the end of its transfer.
        over_allocation: slots that each step allocates beyond the committed ones, as speculative
            decoding does.
        draft: of a speculative step, as the release resolves its arguments: draft tokens, all of
            which it decodes, steps of the draft model, and branches. None for a token a step.
        layout: of the server that is published, of which this is one rank: ``"one"``;
            ``"stages"``, a pipeline of two, which admits and resumes what both agreed on;
            ``"replicas"``, two of data parallelism, with a draft model; ``"attention"``, two of
            data-parallel attention, and from 0.5.22 on ``"attn-dp-size"``, its newer spelling.
        backup: ``--disaggregation-decode-retraction-backup``, from 0.5.18 on; ``"default"`` for a
            server that is not told, which then keeps retracted KV in a pool of the host.
    """

    window: int | None
    page_size: int
    swa_tokens: int
    full_tokens: int
    context: int
    running: int = 64
    in_transfer: int = 64
    reserved: int = 512
    transfer_steps: int = 1
    over_allocation: int = 0
    draft: tuple[int, int, int] | None = None
    layout: str = "one"
    backup: str = "default"


@dataclass
class Counts:
    """What happened since the start: requests, and decoded tokens."""

    steps: int = 0
    tokens: int = 0
    retractions: int = 0
    aborted: int = 0
    finished: int = 0
    peak_admitted: int = 0


@dataclass
class _Transfers:
    """In the place of ``DecodeTransferQueue``: what the prealloc queue reads of it."""

    queue: list[Any] = field(default_factory=list)
    enable_staging: bool = False
    since: dict[str, int] = field(default_factory=dict)


class DecodeWorker:
    """A decode worker whose steps are taken one by one.

    Attributes:
        allocator: the real ``SWATokenToKVPoolAllocator``.
        queue: the real ``DecodePreallocQueue``.
        batch: the real ``ScheduleBatch`` of running requests.
        counts: see `Counts`.
        rejected: requests that the queue answered with an error, and the message.
        order: ids of requests in the order of their admission.
        written: called with ``(request, first position, end position)`` when KV of a range is
            due to be written: after a transfer, and after each decode step.
    """

    def __init__(self, shape: Shape) -> None:
        """Import sglang and build everything; raises what sglang raises."""
        self.shape = shape
        self.counts = Counts()
        self.rejected: dict[str, str] = {}
        self.order: list[str] = []
        self.written: Callable[[Any, int, int], None] = lambda *_: None
        self.decode = importlib.import_module(_DECODE)
        self._batches = importlib.import_module("sglang.srt.managers.schedule_batch")
        self._common = importlib.import_module("sglang.srt.mem_cache.common")
        self._forward_modes = importlib.import_module(
            "sglang.srt.model_executor.forward_batch_info"
        ).ForwardMode
        self.server_args = _server_args(shape)
        self.rows = self.decode.DecodeReqToTokenPool(
            size=shape.running,
            max_context_len=shape.context,
            device="cpu",
            enable_memory_saver=False,
            pre_alloc_size=shape.in_transfer,
        )
        self.pool, self.allocator = _pools(shape)
        ratio = host_pool.resolved(self.rows, self.allocator)
        self.tree_cache = _tree_cache(shape, self.rows, self.allocator, ratio is not None)
        if ratio is not None:
            host_pool.attach(self.tree_cache, self.pool, ratio)
        self.transfers = _Transfers()
        self.batch = self._batch()
        self.scheduler = self._scheduler()
        self.queue = self._queue()
        self._made = 0

    # -- requests --------------------------------------------------------------------------------

    def submit(self, prompt: int | Sequence[int], max_new_tokens: int) -> Any:
        """Queue a request of so many, or of these, prompt tokens; returns sglang's ``Req``."""
        from sglang.srt.sampling.sampling_params import SamplingParams

        ids = list(prompt) if not isinstance(prompt, int) else [1] * prompt
        rid = f"r{self._made}"
        self._made += 1
        sampling = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)
        kept = inspect.signature(self._batches.Req.__init__).parameters
        named: dict[str, Any] = {"vocab_size": 32000, "eos_token_ids": set()}
        named |= {
            "bootstrap_host": "2.2.2.2",  # marks a fake transfer in every release
            "bootstrap_port": 1,
            "bootstrap_room": self._made,
        }
        named = {name: value for name, value in named.items() if name in kept}
        req = self._batches.Req(rid, "", _token_array(ids, self._batches), sampling, **named)
        self.queue.add(req)
        return req

    def abort_in_transfer(self, index: int) -> Any:
        """End the transfer of the `index`-th request in transfer as failed; returns the request."""
        entry = self.transfers.queue.pop(index)
        self.scheduler.metadata_indices.free(entry.metadata_buffer_index)
        self._release(entry.req)
        self.counts.aborted += 1
        return entry.req

    def live(self) -> list[Any]:
        """Requests that hold KV, in no particular order."""
        return [
            *(entry.req for entry in self.transfers.queue),
            *self.scheduler.waiting_queue,
            *self.batch.reqs,
        ]

    @property
    def idle(self) -> bool:
        """Whether no request is anywhere."""
        return not (self.live() or self.queue.queue or self.queue.retracted_queue)

    # -- steps -----------------------------------------------------------------------------------

    def step(self) -> None:
        """One scheduling step: resume, admit, receive, and decode one token of each request."""
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
        """How the release's ``pop_preallocated`` is told on what the stages agree."""
        if agreed is None:
            return {}
        known = inspect.signature(self.queue.pop_preallocated).parameters
        if "pp_good_rids" in known:
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
        self.finish([req for req in self.batch.reqs if _is_done(req)])
        if not self.batch.reqs:
            return
        self._tensors()
        if not self.batch.check_decode_mem():
            self.retract()
        if not self.batch.reqs:
            return
        self._tensors()
        self.batch.forward_mode = self._forward_modes.DECODE
        self.batch.forward_iter = self.counts.steps
        before = [self.committed(req) for req in self.batch.reqs]
        slots = self._alloc_for_decode(self.batch, 1)
        assert len(slots) == len(self.batch.reqs)
        for req, length in zip(self.batch.reqs, before, strict=True):
            self._after_decode(req, length)
        self._over_allocate()
        self.counts.tokens += len(self.batch.reqs)

    def retract(self) -> list[Any]:
        """Retract as stock's scheduler does when the next step does not fit."""
        known = inspect.signature(self.batch.retract_decode).parameters
        arguments = (self.server_args,) if known else ()
        retracted, _, aborted = self.batch.retract_decode(*arguments)
        self.counts.retractions += len(retracted)
        self.counts.aborted += len(aborted)
        for req in aborted:
            self.rejected[req.rid] = req.to_finish.message
        for req in retracted:
            self.queue.add(req, is_retracted=True)
        return list(retracted)

    def finish(self, reqs: Sequence[Any]) -> None:
        """Release the KV of running requests and forget them."""
        for req in reqs:
            self.batch.reqs.remove(req)
            self._release(req)
            self.counts.finished += 1

    def end_all(self) -> None:
        """End every request at once, as when clients disconnect."""
        while self.transfers.queue:
            self.abort_in_transfer(0)
        for req in self.scheduler.waiting_queue:
            self._release(req)
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
            before = (self.counts.finished, self.counts.aborted, len(self.order))
            self.step()
            after = (self.counts.finished, self.counts.aborted, len(self.order))
            if not self.live() and before == after:
                return

    # -- what a request holds --------------------------------------------------------------------

    def committed(self, req: Any) -> int:
        """Tokens of a request that have KV."""
        holder = req if hasattr(req, "kv_committed_len") else req.kv
        return int(holder.kv_committed_len)

    def allocated(self, req: Any) -> int:
        """Tokens of a request that have slots."""
        holder = req if hasattr(req, "kv_allocated_len") else req.kv
        return int(holder.kv_allocated_len)

    def evicted(self, req: Any) -> int:
        """Leading tokens of a request that have no sliding-window KV."""
        if hasattr(req, "swa_evicted_seqlen"):
            return int(req.swa_evicted_seqlen)
        if hasattr(req.kv, "get_evicted_seqlen"):
            component = self._batches.ComponentType.SWA
            return int(req.kv.get_evicted_seqlen(component))
        return int(req.kv.swa_evicted_seqlen)

    def kept_in_tensors(self) -> int:
        """Tokens of retracted requests whose KV is in tensors on the host, from 0.5.18 on."""
        kept = 0
        for req in self.queue.retracted_queue:
            holder = req if hasattr(req, "retraction_backup") else req.kv
            if getattr(getattr(holder, "retraction_backup", None), "cpu_tensors", None) is not None:
                kept += req.seqlen - 1
        return kept

    def slots(self, req: Any, first: int, end: int) -> Any:
        """Full-pool slots of a range of a request's tokens, int32."""
        row = req.req_pool_idx if hasattr(req, "req_pool_idx") else req.kv.req_pool_idx
        return self.rows.req_to_token[row, first:end]

    # -- parts -----------------------------------------------------------------------------------

    def _batch(self) -> Any:
        algorithm = importlib.import_module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm
        batch = self._batches.ScheduleBatch(reqs=[])
        batch.req_to_token_pool = self.rows
        batch.token_to_kv_pool_allocator = self.allocator
        batch.tree_cache = self.tree_cache
        batch.model_config = SimpleNamespace(is_encoder_decoder=False)
        batch.spec_algorithm = algorithm.NONE
        batch.device = "cpu"
        batch.enable_overlap = False
        batch.filter_batch = self._filter
        return batch

    def _filter(self, *, keep_indices: Sequence[int], **_: Any) -> None:
        self.batch.reqs = [self.batch.reqs[index] for index in keep_indices]

    def _tensors(self) -> None:
        import torch

        batch = self.batch
        lengths = [self.committed(req) for req in batch.reqs]
        batch.seq_lens = torch.tensor(lengths)
        batch.seq_lens_cpu = torch.tensor(lengths)
        batch.req_pool_indices = torch.tensor([self._row(req) for req in batch.reqs])

    def _row(self, req: Any) -> int:
        return int(req.req_pool_idx if hasattr(req, "req_pool_idx") else req.kv.req_pool_idx)

    def _alloc_for_decode(self, batch: Any, tokens: int) -> Any:
        module = self._common
        if not hasattr(module, "alloc_for_decode"):
            module = importlib.import_module("sglang.srt.mem_cache.allocation")
        before = [self.allocated(req) for req in batch.reqs]
        # Use over-allocated slots before new ones.
        fresh = [req for req in batch.reqs if self.allocated(req) == self.committed(req)]
        if len(fresh) < len(batch.reqs):
            return self._into_allocated(batch, fresh)
        slots = module.alloc_for_decode(batch, tokens)
        for req, length in zip(batch.reqs, before, strict=True):
            if self.allocated(req) == length:
                self._set(req, "kv_allocated_len", length + tokens)
        return slots

    def _into_allocated(self, batch: Any, fresh: Sequence[Any]) -> Any:
        import torch

        batch.maybe_evict_swa()
        for req in fresh:
            self._extend(req, 1)
        positions = [self.committed(req) for req in batch.reqs]
        return torch.stack(
            [self.slots(req, at, at + 1)[0] for req, at in zip(batch.reqs, positions, strict=True)]
        )

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
        import torch

        held = self.allocated(req)
        now, then = torch.tensor([held]), torch.tensor([held + tokens])
        if self.shape.page_size == 1:
            slots = self.allocator.alloc(tokens)
        elif tokens == 1:
            slots = self.allocator.alloc_decode(then, then, self.slots(req, held - 1, held).long())
        else:
            last = self.slots(req, held - 1, held).long()
            slots = self.allocator.alloc_extend(now, now, then, then, last, tokens)
        assert slots is not None, "the pool is full"
        self.rows.write((self._row(req), slice(held, held + tokens)), slots.to(torch.int32))
        self._set(req, "kv_allocated_len", held + tokens)

    def _after_decode(self, req: Any, at: int) -> None:
        tokens = self.shape.draft[0] if self.shape.draft else 1
        missing = at + tokens - self.allocated(req)
        if missing > 0:
            self._extend(req, missing)
        req.decode_batch_idx += 1
        self._set(req, "kv_committed_len", at + tokens)
        self.written(req, at, at + tokens)
        req.output_ids.extend([3] * tokens)

    def _set(self, req: Any, name: str, value: int) -> None:
        setattr(req if hasattr(req, name) else req.kv, name, value)

    def _forget_backup(self, req: Any) -> None:
        """As stock's scheduler does when a retracted request is aborted, from 0.5.18 on."""
        for name in ("retraction_discard", "discard_kv_cache_backup"):
            if hasattr(self._common, name):
                from sglang.srt.runtime_context import get_disagg

                backend = get_disagg().disaggregation_decode_retraction_backup
                getattr(self._common, name)(req, self.tree_cache, backend)

    def _release(self, req: Any) -> None:
        function = self._common.release_kv_cache
        name = "checkpoint" if "checkpoint" in inspect.signature(function).parameters else None
        function(req, self.tree_cache, **{name or "is_insert": False})

    def _scheduler(self) -> Any:
        from sglang.srt.disaggregation.utils import ReqToMetadataIdxAllocator

        algorithm = importlib.import_module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm

        def output(reqs: Sequence[Any], *_: Any) -> None:
            for req in reqs:
                reason = req.finished_reason or req.to_finish
                self.rejected[req.rid] = reason.message
                self.counts.aborted += 1

        runner = SimpleNamespace(
            swa_max_total_num_tokens=self.shape.swa_tokens,
            max_token_pool_size=self.shape.full_tokens,
            kv_cache_dtype_str="auto",
        )
        ranks = SimpleNamespace(pp_rank=0, pp_size=1, dp_rank=0, tp_rank=0, tp_size=1, gpu_id=0)
        return SimpleNamespace(
            running_batch=self.batch,
            waiting_queue=[],
            last_batch=None,
            server_args=self.server_args,
            sliding_window_size=self.shape.window,
            spec_algorithm=algorithm.EAGLE if self.shape.over_allocation else algorithm.NONE,
            tp_worker=SimpleNamespace(is_hybrid_swa=True, model_runner=runner),
            metadata_indices=ReqToMetadataIdxAllocator(4 * self.shape.in_transfer),
            stream_output=output,
            output_streamer=SimpleNamespace(stream_output=output),
            metrics_reporter=SimpleNamespace(enable_metrics=False),
            ps=ranks,
            pp_size=1,
            dp_rank=0,
            gpu_id=0,
            random_seed=0,
            enable_hisparse=False,
            enable_metrics=False,
            enable_overlap=False,
            enable_priority_scheduling=False,
            enable_decode_hicache=False,
            enable_lora=False,
            decode_offload_manager=None,
            kv_checksum_computer=None,
            retire_unadmitted_request=lambda req: None,
        )

    def _queue(self) -> Any:
        from sglang.srt.disaggregation.utils import TransferBackend

        stock = self.decode.DecodePreallocQueue
        given: dict[str, Any] = {
            "req_to_token_pool": self.rows,
            "token_to_kv_pool_allocator": self.allocator,
            "draft_token_to_kv_pool": None,
            "req_to_metadata_buffer_idx_allocator": self.scheduler.metadata_indices,
            "metadata_buffers": None,
            "scheduler": self.scheduler,
            "transfer_queue": self.transfers,
            "tree_cache": self.tree_cache,
            "gloo_group": _gloo_group(),
            "tp_rank": 0,
            "tp_size": 1,
            "dp_size": 1,
            "gpu_id": 0,
            "bootstrap_port": 1,
            "max_total_num_tokens": self.shape.full_tokens,
            "prefill_pp_size": 1,
            "pp_rank": 0,
            "num_reserved_decode_tokens": self.shape.reserved,
            "transfer_backend": TransferBackend.FAKE,
        }
        kept = inspect.signature(stock.__init__).parameters
        given = {name: value for name, value in given.items() if name in kept}
        # The manager would connect to another machine; here there is none.
        states = getattr(
            importlib.import_module("sglang.srt.disaggregation.base.conn"), "StateType", None
        )
        kv_args = SimpleNamespace(state_types=[states.SWA] if states else [])
        manager = SimpleNamespace(kv_args=kv_args, prefill_info_table={})
        original = vars(stock)["_init_kv_manager"]
        stock._init_kv_manager = lambda queue: manager
        try:
            queue = stock(**given)
        finally:
            stock._init_kv_manager = original
        if self.shape.layout == "stages" and hasattr(queue, "pp_size"):
            queue.pp_size = 2
        if self.shape.layout == "replicas":
            queue.draft_token_to_kv_pool = object()
        return queue


_LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "stages": {"pp_size": 2},
    "replicas": {"dp_size": 2},
    "attention": {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True},
    "attn-dp-size": {"tp_size": 2, "attn_dp_size": 2},
}


def _is_done(req: Any) -> bool:
    return bool(len(req.output_ids) >= req.sampling_params.max_new_tokens)


def _token_array(ids: list[int], batches: Any) -> Any:
    """Token ids in the type that the release's ``Req`` joins with its output ids."""
    from array import array

    return array("q", ids) if _mentions(vars(batches.Req)["__init__"], "array(") else ids


@functools.cache
def _mentions(function: Any, text: str) -> bool:
    return text in inspect.getsource(function)


def _server_args(shape: Shape) -> Any:
    """Publish the server that a worker is a rank of; what `given.MORE` adds gives way to it."""
    from sglang.srt import server_args as module

    own = {
        "page_size": shape.page_size,
        "disable_radix_cache": True,
        "disaggregation_mode": "decode",
        "disaggregation_transfer_backend": "fake",
        "num_reserved_decode_tokens": shape.reserved,
        "device": "cpu",
        **_LAYOUTS[shape.layout],
    }
    if shape.over_allocation:
        own["speculative_algorithm"] = "EAGLE"
    if shape.backup != "default":
        own["disaggregation_decode_retraction_backup"] = shape.backup
    known = inspect.signature(module.ServerArgs).parameters
    asked = {"chunked_prefill_size": 8192} | MORE | own
    told = {name: value for name, value in asked.items() if name in known}
    arguments = module.ServerArgs(model_path="dummy", **told)
    module.set_global_server_args_for_scheduler(noted(arguments))
    if shape.draft:
        names = ("num_draft_tokens", "num_steps", "eagle_topk")
        _resolve(
            arguments,
            {f"speculative_{n}": v for n, v in zip(names, shape.draft, strict=True)},
        )
    _state_ranks()
    return arguments


def _resolve(arguments: Any, resolved: dict[str, Any]) -> None:
    """Set arguments as stock resolves them for its draft model, where the release keeps them."""
    try:
        from sglang.srt.runtime_context import get_context, get_spec
    except ImportError:
        resolves = False
    else:
        resolves = all(hasattr(get_spec(), name) for name in resolved)
    if resolves:
        get_context().override("the proof", **resolved)
        return
    for name, value in resolved.items():
        setattr(arguments, name, value)


def _state_ranks() -> None:
    """Say, to releases that keep a register of it, that this process is the only one."""
    try:
        from sglang.srt.runtime_context import get_parallel
    except ImportError:
        return
    register = get_parallel()
    if hasattr(register, "override_permanently"):
        group = SimpleNamespace(cpu_group=_gloo_group())
        register.override_permanently(
            tp_rank=0, pp_rank=0, dp_rank=None, attn_tp_rank=0, attn_tp_group=group
        )


def _pools(shape: Shape) -> tuple[Any, Any]:
    """A pool with one layer of each kind, and its allocator."""
    import torch

    module = importlib.import_module("sglang.srt.mem_cache.swa_memory_pool")
    more = {"enable_kvcache_transpose": False}
    more = {k: v for k, v in more.items() if k in inspect.signature(module.SWAKVPool).parameters}
    pool = module.SWAKVPool(
        size=shape.full_tokens,
        size_swa=shape.swa_tokens,
        page_size=shape.page_size,
        dtype=torch.float32,
        head_num=1,
        head_dim=2,
        swa_attention_layer_ids=[0],
        full_attention_layer_ids=[1],
        device="cpu",
        **more,
    )
    if not hasattr(module, "SWATokenToKVPoolAllocator"):
        module = importlib.import_module("sglang.srt.mem_cache.allocator.swa")
    allocator = module.SWATokenToKVPoolAllocator(
        size=shape.full_tokens,
        size_swa=shape.swa_tokens,
        page_size=shape.page_size,
        dtype=torch.float32,
        device="cpu",
        kvcache=pool,
        need_sort=True,
    )
    return pool, allocator


def _tree_cache(shape: Shape, rows: Any, allocator: Any, has_host_pool: bool) -> Any:
    """The cache without prefix sharing that a decode server has.

    Up to 0.5.19 that is one without nodes, unless retracted KV goes to a pool of the host.
    """
    parameters = importlib.import_module("sglang.srt.mem_cache.cache_init_params").CacheInitParams(
        disable=True,
        req_to_token_pool=rows,
        token_to_kv_pool_allocator=allocator,
        page_size=shape.page_size,
        sliding_window_size=shape.window,
    )
    if not has_host_pool:
        try:
            chunked = importlib.import_module("sglang.srt.mem_cache.chunk_cache")
        except ImportError:
            pass  # now there is one cache for all
        else:
            return chunked.SWAChunkCache(parameters)
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    parameters.tree_components = (ComponentType.FULL, ComponentType.SWA)
    return UnifiedRadixCache(parameters)


def _gloo_group() -> Any:
    """A group of this process alone."""
    import torch.distributed as distributed

    if not distributed.is_initialized():
        store = tempfile.NamedTemporaryFile(delete=False)  # noqa: SIM115
        distributed.init_process_group(
            "gloo", init_method=f"file://{store.name}.store", rank=0, world_size=1
        )
    return distributed.group.WORLD
