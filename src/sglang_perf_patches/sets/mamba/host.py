"""What the host knows of a batch, without querying the device."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

_LENGTHS = {
    "extend_seq_lens": "extend_seq_lens_cpu",
    "extend_prefix_lens": "extend_prefix_lens_cpu",
}
TRACKED = {
    "mamba_track_mask": "mamba_prefill_track_mask_cpu",
    "mamba_track_seqlens": "mamba_track_seqlens_cpu",
}
"""Tensors of a ForwardBatch, and the lists that have the same content; those of what is tracked
are there from 0.5.21 on."""

_CHANGED = ("_original_forward_mode", "tbo_parent_token_range")
"""Set where data-parallel padding relabelled a batch, and where a two-batch overlap halved it."""


class HostDataMismatch(AssertionError):
    """Under ``SGLANG_PERF_PATCHES_DEBUG=1``: a host list and its device tensor differ."""


def prefill(forward_batch: Any) -> dict[str, list[Any]] | None:
    """Names of a ForwardBatch's tensors, of shape ``[batch]`` → the host's list of their content.

    Known are plain and mixed prefills whose lengths the scheduler passed as lists, one entry a
    request. None, so that stock's code must query the device: batches that data-parallel padding
    changed, halves of a two-batch overlap, and the phases of speculative decoding.

    Raises:
        HostDataMismatch: under ``SGLANG_PERF_PATCHES_DEBUG=1``.
    """
    if not is_prefill(forward_batch):
        return None
    if any(getattr(forward_batch, name, None) is not None for name in _CHANGED):
        return None
    size = forward_batch.batch_size
    known: dict[str, list[Any]] = {}
    for name, held in (_LENGTHS | TRACKED).items():
        tensor, values = getattr(forward_batch, name), getattr(forward_batch, held, None)
        is_of_batch = tensor is not None and tensor.shape == (size,)
        if is_of_batch and type(values) is list and len(values) == size > 0:
            known[name] = values
    if not _LENGTHS.keys() <= known.keys():
        return None
    if is_debugging():
        for name, values in known.items():
            on_device = getattr(forward_batch, name).tolist()
            if values != on_device:
                raise HostDataMismatch(f"{name}: the host has {values}, the device {on_device}")
    return known


def is_prefill(forward_batch: Any) -> bool:
    """Whether a ForwardBatch is a plain or mixed prefill by its mode."""
    return forward_batch.forward_mode.name in {"EXTEND", "MIXED"}


def to_device(tensors: Sequence[torch.Tensor], device: Any) -> list[torch.Tensor]:
    """Copies of CPU tensors on a device, without waiting where stock pins."""
    kind = torch.device(device).type
    pins = kind == "cuda" and is_pinned()
    return [
        (tensor.pin_memory() if pins else tensor).to(device, non_blocking=pins or kind == "cpu")
        for tensor in tensors
    ]


@contextmanager
def staging(target: torch.Tensor) -> Iterator[Any]:
    """A numpy array to be filled within the context, then copied to `target`.

    The copy waits only if stock does not pin memory. PyTorch's allocator of pinned memory does not
    reuse memory that is still being copied.
    """
    pins = target.is_cuda and is_pinned()
    staged = torch.empty(target.shape, dtype=target.dtype, pin_memory=pins)
    yield staged.numpy()
    target.copy_(staged, non_blocking=pins or not target.is_cuda)


def is_pinned() -> bool:
    """Whether stock pins the memory of its own copies to a CUDA device.

    From 0.5.23 on it does not under confidential computing, where pinned memory is no faster.
    """
    return bool(sys.modules["sglang.srt.utils.common"].is_pin_memory_available())


def is_debugging() -> bool:
    """Whether ``SGLANG_PERF_PATCHES_DEBUG=1`` turns on the comparison of host and device."""
    return os.environ.get("SGLANG_PERF_PATCHES_DEBUG") == "1"
