"""Layers that are captured up to FlashInfer's kernel of the delta rule, where the graph breaks.

That kernel picks its algorithm by the number of requests and of tokens, so it is called between
two segments of the graph, with the numbers that stock gives it. What comes before it in a layer is
captured with the rest of the model: convolution, split, gates, and stock's own preparation of the
kernel's input. For a batch of one request a second graph has the call too (`OneRequest`).
"""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from .. import host
from . import BREAKABLE
from .prefill_tables import STATE_WIDTH, Tables

_PER_TOKEN = ("q", "k", "v", "g", "beta", "output")
"""The kernel's arguments that have a row for each token."""

_Moved = tuple[torch.Tensor, torch.Tensor] | None
"""Rows, and where their states go; None if none does."""


@dataclass
class Live:
    """What the kernel's call reads of the batch that is replayed."""

    tokens: int
    starts: torch.Tensor  # ``cu_seqlens``, int64 of shape ``[requests + 1]``
    slots: torch.Tensor  # where each request's states are, int64 of shape ``[requests]``
    metadata: Any  # stock's own ForwardMetadata
    at_chunks: _Moved  # which of the states that the kernel keeps at chunks go to which slots
    final: _Moved  # which slots' states after the batch go to which slots


def live(backend: Any, forward_batch: Any, tokens: int) -> Live:
    """Make stock make a batch's metadata, and compute once what each of its layers would.

    The backend's ``forward_metadata`` is the batch's own afterwards. An idle rank has no tokens.
    """
    backend.init_forward_metadata(forward_batch)
    meta = backend.forward_metadata
    tracks = meta.has_mamba_track_mask
    return Live(
        tokens=tokens,
        starts=meta.query_start_loc.to(torch.int64),
        slots=_written(backend, meta.mamba_cache_indices),
        metadata=meta,
        at_chunks=_moved(meta.track_ssm_h_src, meta.track_ssm_h_dst) if tracks else None,
        final=_moved(meta.track_ssm_final_src, meta.track_ssm_final_dst) if tracks else None,
    )


def _written(backend: Any, slots: torch.Tensor) -> torch.Tensor:
    """Where the kernel writes states: of a row without a slot into the last one, as in stock."""
    last = backend.req_to_token_pool.mamba_pool.mamba_cache.temporal.shape[1] - 1
    return torch.where(slots >= 0, slots, last).to(torch.int64)


def _moved(sources: torch.Tensor, targets: torch.Tensor) -> _Moved:
    return (sources.to(torch.int64), targets.to(torch.int64)) if sources.numel() else None


class BreakTables(Tables):
    """The tables of one bucket, and what calls FlashInfer's kernel for layers captured on them."""

    MOST = 256  # a request costs little: the kernel's call has the batch's own
    live: Live  # set before each replay with breaks
    one: OneRequest | None = None  # once set, the kernel's calls are captured too
    _own: Any = None  # the server's FlashInferGDNKernel

    @classmethod
    def unserved(cls, backend: Any, modules: Any) -> str | None:
        """As for `Tables`."""
        own = backend.kernel_dispatcher.extend_kernel
        held = backend.req_to_token_pool.mamba_pool.mamba_cache.temporal.dtype
        if own.use_state_pool or own._prefill_needs_fp32_state:
            return "FlashInfer's kernel is another one on this GPU"
        if held != torch.float32:
            return f"FlashInfer's kernel would convert states of {held}"
        return None

    def begin(self, backend: Any, forward_batch: Any, tokens: int) -> torch.Tensor:
        """As `Tables.begin`; makes stock make its metadata only if the graph breaks for them."""
        self.has_one = self.one is not None and self.one.takes(backend, forward_batch)
        if self.one is None or not self.has_one:
            self.live = live(backend, forward_batch, tokens)
            slots: torch.Tensor = self.live.metadata.mamba_cache_indices
            return slots
        slots = super().begin(backend, forward_batch, tokens)
        self.one.fill(_written(backend, slots), forward_batch)
        return slots

    def prepare_one(self, backend: Any, modules: Any) -> bool:
        """As `Tables.prepare_one`."""
        every = int(modules("sglang.srt.runtime_context").mamba_cache_chunk_size())
        states = backend.req_to_token_pool.mamba_pool.mamba_cache.temporal
        length = chunk_length(self._own, states.shape[2], states.device)
        if length is None or not self.tracks or self.tokens <= every:
            return False
        self.one = OneRequest(self.tokens, every, length, states.device)
        return True

    def kernel(self, backend: Any, modules: Any) -> Any:
        """These tables, whose `extend` stands in for the kernel's."""
        if self._own is None:
            self._own = backend.kernel_dispatcher.extend_kernel
            eager_on_graph = modules(BREAKABLE).eager_on_graph
            # A capture computes nothing in the break's place.
            self._break = eager_on_graph(True, capture_stub=lambda *_: None)(_called)
        return self

    def extend(self, q, k, v, g, beta, *, ssm_states, output, **rest):
        """As stock's, whose code runs; but states are moved at the kernel's call, of the batch.

        Rows of no token are zero, as stock's layer leaves them.
        """

        def prefill(**kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
            written = kwargs["output"]
            if self.one is not None:
                self.one.run(self._own._prefill_fn, ssm_states, kwargs)
            else:
                rows = [kwargs.pop(name) for name in _PER_TOKEN]
                self._break(*rows, lambda *now: self._run(ssm_states, kwargs, *now))
            return written, kwargs["output_state"]

        if self.one is None:
            output.zero_()
        stocks = copy.copy(self._own)
        stocks._prefill_fn = prefill
        nobody = torch.empty(0, dtype=torch.int64, device=q.device)
        rest |= {"cache_indices": nobody, "query_start_loc": nobody}
        return stocks.extend(q, k, v, g, beta, ssm_states=ssm_states, output=output, **rest)

    def _run(self, states: torch.Tensor, kwargs: dict[str, Any], *rows: torch.Tensor) -> None:
        """Call the kernel for the batch, then keep what it tracks."""
        now = self.live
        if not now.tokens:
            return
        if rows[0].shape[0] != now.tokens:
            rows = tuple(each.narrow(0, 0, now.tokens) for each in rows)
        count = now.metadata.num_state_checkpoints
        kept = states.new_empty((count, *states.shape[1:])) if count > 0 else None
        before = states.index_select(0, now.slots)  # the kernel gets copies of states, as in stock
        after = torch.empty_like(before)
        kwargs = dict(zip(_PER_TOKEN, rows, strict=True)) | kwargs
        kwargs |= {
            "initial_state": before,
            "output_state": after,
            "cu_seqlens": now.starts,
            "state_checkpoints": kept,
            "checkpoint_cu_starts": now.metadata.state_checkpoint_cu_starts,
            "checkpoint_every_n_tokens": now.metadata.state_checkpoint_every_n_tokens,
        }
        self._own._prefill_fn(**kwargs)
        states.index_copy_(0, now.slots, after)
        for moved, held in ((now.at_chunks, kept), (now.final, states)):
            if moved is not None:
                assert held is not None  # or stock's own layer would fail too
                states.index_copy_(0, moved[1], held.index_select(0, moved[0]))


def _called(*args: Any) -> None:
    """The break: the last argument gets the others, which a replay has by their addresses."""
    *rows, run = args
    run(*rows)


# -- one request

_READ = "0.7.2"
"""The FlashInfer in which what `OneRequest` relies on was read, and compared on a GPU."""


def flashinfer_version() -> str:
    """The installed version of FlashInfer; "" if it is not installed."""
    try:
        return importlib.metadata.version("flashinfer-python")
    except importlib.metadata.PackageNotFoundError:
        return ""


def chunk_length(own: Any, heads: int, device: Any) -> Callable[[int], int] | None:
    """FlashInfer's function of a request's tokens: the tokens of a chunk into which it splits it.

    None if this FlashInfer is not known.
    """
    if flashinfer_version() != _READ:
        return None
    theirs: Any = sys.modules[own._prefill_fn.__module__]
    helper = importlib.import_module("flashinfer.gdn_kernels.delta_rule_dsl.varlen_helper")
    choose = helper.choose_cp_chunk_len_host
    units = theirs.get_device_sm_count(device)
    options = {
        "device_capability": theirs.get_compute_capability(device),
        "device_name": theirs.get_device_name(device),
    }
    return lambda tokens: int(choose(tokens, heads, units, total_seqlen=tokens, **options))


class OneRequest:
    """What the kernel reads in a graph of one request, whose bucket has `tokens`.

    The kernel keeps a state after `every` tokens.

    The kernel's Python picks an algorithm by three numbers. With one request two of them do not
    depend on the batch: whether the sequence is split among blocks of threads, and the variant of
    each kernel. The third is the length of a split's chunks, which follows from the number of
    tokens. So where the batch's tokens and the bucket's give the same length, a call with the
    bucket's rows and the batch's offsets computes the same. Rows past the batch are zero, as they
    are past the end of a tensor.

    Everything that the kernel reads is here at fixed addresses; FlashInfer keeps its own scratch
    memory (`_cache_buf_retired`). A batch that keeps no state at a chunk, or one after its last
    token, takes another variant of the kernel, so it replays the graph with breaks.
    """

    def __init__(self, tokens: int, every: int, length: Callable[[int], int], device: Any) -> None:
        self._tokens, self._every, self._length = tokens, every, length
        held = torch.zeros(8, dtype=torch.int64, device=device)
        self._from_host = held[:5]
        self.starts = held[:2]  # ``cu_seqlens``
        self.checkpoints = held[2:4]  # ``checkpoint_cu_starts``
        self.source = held[4:5]  # which of the states at chunks is kept
        self.slot = held[5:6]  # where the request's states are
        self.target = held[6:7]  # where that one is kept
        self.starts[1] = tokens
        self.checkpoints[1] = tokens // every

    def takes(self, backend: Any, forward_batch: Any) -> bool:
        """Whether a plain or mixed prefill gives the same bits in this graph, as the host knows."""
        lens = forward_batch.extend_seq_lens_cpu
        if (
            len(lens) != 1
            or forward_batch.multi_item_delimiter_indices is not None
            or not backend._has_cpu_prefill_track_metadata(forward_batch)
        ):
            return False
        kept = _kept(forward_batch)
        return (
            forward_batch.mamba_prefill_track_mask_cpu[0]
            and kept > self._every
            and kept % self._every != 0
            and kept % backend.mamba_chunk_size != 0  # else stock keeps the state after the last
            and self._length(lens[0]) == self._length(self._tokens)
        )

    def fill(self, slot: torch.Tensor, forward_batch: Any) -> None:
        """Have the graph read a batch that it takes, whose slots are as the kernels take them.

        Its request's states are in `slot`, int64 of shape ``[1]`` on the device.
        """
        tokens, every = forward_batch.extend_seq_lens_cpu[0], self._every
        with host.staging(self._from_host) as staged:
            # As stock's `maybe_build_flashinfer_checkpoint_plan`, which queries the device.
            staged[:] = 0, tokens, 0, tokens // every, _kept(forward_batch) // every - 1
        self.slot.copy_(slot)
        self.target.copy_(forward_batch.mamba_track_indices)

    def run(self, prefill: Any, states: torch.Tensor, kwargs: dict[str, Any]) -> None:
        """Call the kernel, then keep the state at a chunk: what a capture takes note of."""
        q, v = kwargs["q"], kwargs["v"]
        size: Any = states[0].numel()
        before, after = (states.new_empty((1, *states.shape[1:])) for _ in range(2))
        kept = states.new_empty((self._tokens // self._every, *states.shape[1:]))
        parts = triton.cdiv(size, STATE_WIDTH)
        # Stock has just made these four; each node of a graph takes some 10 kB of the GPU's memory.
        prepare[(self._tokens + parts,)](
            *(q, kwargs["k"], v, kwargs["output"], self.starts, q.stride(0), v.stride(0)),
            *(states, self.slot, before, states.stride(0), self._tokens, size),
            head=q.shape[2],
            part=STATE_WIDTH,
        )
        more = {
            "initial_state": before,
            "output_state": after,
            "cu_seqlens": self.starts,
            "state_checkpoints": kept,
            "checkpoint_cu_starts": self.checkpoints,
            "checkpoint_every_n_tokens": self._every,
        }
        prefill(**kwargs | more)
        keep[(parts,)](
            *(after, self.slot, kept, self.source, self.target),
            *(states, states.stride(0), size),
            part=STATE_WIDTH,
        )


@triton.jit(do_not_specialize=["tokens"])  # type: ignore[untyped-decorator]
def prepare(
    q,
    k,
    v,
    output,
    starts,
    narrow,
    wide,
    states,
    slot,
    before,
    slot_stride,
    tokens,
    size,
    head: tl.constexpr,
    part: tl.constexpr,
):
    """Write zeros into the rows past the batch, of `narrow` and `wide` values; copy its state.

    A program has a row, of which the batch's own are not touched, or a part of the state.
    """
    row = tl.program_id(0)
    if row >= tokens:
        at = (row - tokens) * part + tl.arange(0, part)
        source = states + tl.load(slot) * slot_stride + at
        tl.store(before + at, tl.load(source, mask=at < size), mask=at < size)
    elif row >= tl.load(starts + 1):
        for first in range(0, narrow, head):
            at = row * narrow + first + tl.arange(0, head)
            tl.store(q + at, 0.0)
            tl.store(k + at, 0.0)
        for first in range(0, wide, head):
            at = row * wide + first + tl.arange(0, head)
            tl.store(v + at, 0.0)
            tl.store(output + at, 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def keep(after, slot, kept, source, target, states, slot_stride, size, part: tl.constexpr):
    """Copy the state after the batch, then the one at a chunk, to where they are kept."""
    at = tl.program_id(0) * part + tl.arange(0, part)
    is_there = at < size
    own = tl.load(after + at, mask=is_there)
    tl.store(states + tl.load(slot) * slot_stride + at, own, mask=is_there)
    at_chunk = tl.load(kept + tl.load(source) * size + at, mask=is_there)
    tl.store(states + tl.load(target) * slot_stride + at, at_chunk, mask=is_there)


def _kept(forward_batch: Any) -> int:
    """After how many of its new tokens the state of the batch's only request is kept."""
    tracked: int = forward_batch.mamba_track_seqlens_cpu[0]
    return tracked - int(forward_batch.extend_prefix_lens_cpu[0])
