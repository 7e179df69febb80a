"""FlashInfer's kernel of the delta rule inside the graph, for a batch of one request.

The kernel's Python picks an algorithm by three numbers. With one request two of them do not depend
on the batch: whether the sequence is split among blocks of threads, and the variant of each kernel.
The third is the length of a split's chunks, which follows from the number of tokens. So where the
batch's tokens and the bucket's give the same length, a call with the bucket's rows and the batch's
offsets computes the same. Rows past the batch are zero, as they are past the end of a tensor.

Everything that the kernel reads is here at fixed addresses; FlashInfer keeps its own scratch memory
(`_cache_buf_retired`). A batch that keeps no state at a chunk, or one after its last token, takes
another variant of the kernel, so it replays the graph with breaks.

Needs torch and triton: imported by the install function only.
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
    """A function of a request's tokens: the tokens of a chunk into which FlashInfer splits it.

    None if it is not known of this FlashInfer.
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
    """What the kernel reads in a graph of one request.

    Attributes:
        starts: ``cu_seqlens``, int64 of shape ``[2]``.
        slot: where its states are, int64 of shape ``[1]``.
        checkpoints: ``checkpoint_cu_starts``, int64 of shape ``[2]``.
        source: which of the states at chunks is kept, int64 of shape ``[1]``.
        target: in which slot, int64 of shape ``[1]``.
    """

    def __init__(self, tokens: int, every: int, length: Callable[[int], int], device: Any) -> None:
        """Allocate, for a bucket of `tokens`; the kernel keeps a state after `every` tokens."""
        self._tokens = tokens
        self._every = every
        self._length = length
        held = torch.zeros(8, dtype=torch.int64, device=device)
        self.starts, self.checkpoints = held[:2], held[2:4]
        self.source, self.slot, self.target = held[4:5], held[5:6], held[6:7]
        self._from_host = held[:5]
        self.starts[1] = tokens
        self.checkpoints[1] = tokens // every

    def takes(self, backend: Any, forward_batch: Any) -> bool:
        """Whether a batch gives the same bits in this graph, by what the host knows of it.

        Args:
            backend: the GDNAttnBackend.
            forward_batch: a plain or mixed prefill.
        """
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
        """Have the graph read a batch that it takes.

        Args:
            slot: where the states of its request are, int64 of shape ``[1]`` on the device.
            forward_batch: the batch, with slots as the kernels take them.
        """
        tokens, every = forward_batch.extend_seq_lens_cpu[0], self._every
        with host.staging(self._from_host) as staged:
            # As stock's `maybe_build_flashinfer_checkpoint_plan`, which queries the device.
            staged[:] = 0, tokens, 0, tokens // every, _kept(forward_batch) // every - 1
        self.slot.copy_(slot)
        self.target.copy_(forward_batch.mamba_track_indices)

    def run(
        self, prefill: Callable[..., Any], states: torch.Tensor, kwargs: dict[str, Any]
    ) -> None:
        """Call the kernel, then keep the state at a chunk: what a capture takes note of."""
        for rows in (kwargs["q"], kwargs["k"], kwargs["v"]):  # stock has just made these three
            _clear[(self._tokens,)](rows, self.starts, rows.stride(0), HEAD=rows.shape[2])
        kept = states.new_empty((self._tokens // self._every, *states.shape[1:]))
        kwargs = kwargs | {
            "cu_seqlens": self.starts,
            "state_checkpoints": kept,
            "checkpoint_cu_starts": self.checkpoints,
            "checkpoint_every_n_tokens": self._every,
        }
        update(prefill, states, self.slot, kwargs)
        states.index_copy_(0, self.target, kept.index_select(0, self.source))


@triton.jit  # type: ignore[untyped-decorator]
def _clear(rows, starts, width, HEAD: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Write zeros into a row past the batch; the batch's own, most of them, are not touched."""
    row = tl.program_id(0)
    if row >= tl.load(starts + 1):
        for at in range(0, width, HEAD):
            tl.store(rows + row * width + at + tl.arange(0, HEAD), 0.0)


def update(
    prefill: Callable[..., Any], states: torch.Tensor, slots: torch.Tensor, kwargs: dict[str, Any]
) -> None:
    """Call the kernel on copies of the states in `slots`, as stock does, and copy them back."""
    before = states.index_select(0, slots)
    after = torch.empty_like(before)
    prefill(**kwargs | {"initial_state": before, "output_state": after})
    states.index_copy_(0, slots, after)


def _kept(forward_batch: Any) -> int:
    """After how many of its new tokens the state of the batch's only request is kept."""
    tracked: int = forward_batch.mamba_track_seqlens_cpu[0]
    return tracked - int(forward_batch.extend_prefix_lens_cpu[0])
