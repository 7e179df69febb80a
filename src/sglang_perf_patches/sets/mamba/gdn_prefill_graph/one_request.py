"""FlashInfer's kernel of the delta rule inside the graph, for a batch of one request.

The kernel's Python picks an algorithm by three numbers. With one request two of them do not depend
on the batch: whether the sequence is split among blocks of threads, and the variant of each kernel.
The third is the length of a split's chunks, which follows from the number of tokens. So where the
batch's tokens and the bucket's give the same length, a call with the bucket's rows and the batch's
offsets computes the same. Rows past the batch are zero, as they are past the end of a tensor.

Everything that the kernel reads is here at fixed addresses; FlashInfer keeps its own scratch memory
(`_cache_buf_retired`). A batch that keeps no state at a chunk, or one after its last token, takes
another variant of the kernel, so it replays the graph with breaks.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from .. import host
from .prefill_tables import STATE_WIDTH

_LENGTHS = "flashinfer.gdn_kernels.delta_rule_dsl.varlen_helper"
_READ = ("0.7.2",)
"""Versions of FlashInfer of which the above was read, and compared on a GPU."""


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
    if flashinfer_version() not in _READ:
        return None
    theirs: Any = sys.modules[own._prefill_fn.__module__]
    choose = importlib.import_module(_LENGTHS).choose_cp_chunk_len_host
    units = theirs.get_device_sm_count(device)
    options = {
        "device_capability": theirs.get_compute_capability(device),
        "device_name": theirs.get_device_name(device),
    }
    return lambda tokens: int(choose(tokens, heads, units, total_seqlen=tokens, **options))


class OneRequest:
    """What the kernel reads in a graph of one request, whose bucket has `tokens`.

    The kernel keeps a state after `every` tokens.
    """

    def __init__(self, tokens: int, every: int, length: Callable[[int], int], device: Any) -> None:
        self._tokens = tokens
        self._every = every
        self._length = length
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
        if len(lens) != 1 or forward_batch.multi_item_delimiter_indices is not None:
            return False
        if not backend._has_cpu_prefill_track_metadata(forward_batch):
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
