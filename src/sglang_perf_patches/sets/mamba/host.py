"""What the host knows of a batch, without querying the device.

Needs torch: imported by the install functions only.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

_PREFILL_MODES = frozenset({"EXTEND", "MIXED"})
_TRACK = "_sglang_perf_patches_track"
_LENS = "_sglang_perf_patches_lens"
# The alignment of the CUDA allocator's blocks, so that kernels see the same alignment as in a
# separate tensor.
_ALIGNMENT = 512  # bytes
# Long enough for what a batch has just launched, too short for another forward.
_SOON = 50e-6  # seconds


class HostDataMismatch(AssertionError):
    """Under ``SGLANG_PERF_PATCHES_DEBUG=1``: a host list and its device tensor differ."""


@dataclass(frozen=True)
class Track:
    """What a prefill batch tracks, row by row.

    Attributes:
        mask: whether the row's state is tracked.
        seqlens: tokens of the sequence up to the tracked position, -1 in rows without tracking.
    """

    mask: tuple[bool, ...]
    seqlens: tuple[int, ...]


@dataclass(frozen=True)
class Prefill:
    """A prefill batch as the host knows it.

    Attributes:
        lens: new tokens per request.
        prefixes: tokens per request that are there already.
        track: what is tracked; None if the batch tracks nothing or the host does not know.
    """

    lens: tuple[int, ...]
    prefixes: tuple[int, ...]
    track: Track | None


@dataclass
class Forward:
    """A batch while the metadata of its forward is made, with what is computed from it once.

    Attributes:
        batch: the ForwardBatch.
        known: what `prefill` returns for it.
    """

    batch: Any
    known: Prefill | None

    @cached_property
    def on_cpu(self) -> Any:
        """See `batch_on_cpu`; for a batch whose track is known."""
        assert self.known is not None
        assert self.known.track is not None
        return batch_on_cpu(self.batch, self.known, self.known.track)


class KnownMask(torch.Tensor):  # type: ignore[misc]
    """A boolean mask on the device, shape ``[batch]``, whose content the host knows.

    `any` and `nonzero` answer from the host. Every other operation is the plain tensor's, and
    its result is a plain tensor.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

    _any: bool
    _rows: tuple[int, ...] | torch.Tensor

    @staticmethod
    def of(mask: torch.Tensor, content: Sequence[bool]) -> KnownMask:
        """A view of `mask` that knows its content."""
        known: KnownMask = mask.as_subclass(KnownMask)
        known.__dict__.update(vars(mask))
        known._any = any(content)
        known._rows = tuple(row for row, tracked in enumerate(content) if tracked)
        return known

    def any(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """A 0-dim boolean on the CPU; with arguments, the plain tensor's answer."""
        if args or kwargs:
            return super().any(*args, **kwargs)
        return torch.tensor(self._any)

    def nonzero(self, *, as_tuple: bool = False) -> Any:
        """The int64 rows that are True, on the mask's device."""
        if not as_tuple:
            return super().nonzero()
        if isinstance(self._rows, tuple):
            rows = torch.tensor(self._rows, dtype=torch.int64)
            (self._rows,) = to_device([rows], self.device)
        return (self._rows,)


def prefill(forward_batch: Any) -> Prefill | None:
    """What the host knows of a ForwardBatch; None if stock's code must query the device.

    Known are plain and mixed prefills whose lengths the scheduler passed as lists, one entry a
    request. Not known are batches that data-parallel padding changed, halves of a two-batch
    overlap, and the phases of speculative decoding.

    Raises:
        HostDataMismatch: under ``SGLANG_PERF_PATCHES_DEBUG=1``.
    """
    if not is_prefill(forward_batch) or not _is_whole(forward_batch):
        return None
    size = forward_batch.batch_size
    lens = forward_batch.extend_seq_lens_cpu
    prefixes = forward_batch.extend_prefix_lens_cpu
    devices = (
        forward_batch.extend_seq_lens,
        forward_batch.extend_prefix_lens,
        forward_batch.extend_start_loc,
    )
    if not (_is_list(lens, size) and _is_list(prefixes, size)) or size == 0:
        return None
    if any(tensor is None or tensor.shape != (size,) for tensor in devices):
        return None
    known = Prefill(tuple(lens), tuple(prefixes), _track(forward_batch, size))
    if is_debugging():
        _compare("extend_seq_lens", known.lens, forward_batch.extend_seq_lens)
        _compare("extend_prefix_lens", known.prefixes, forward_batch.extend_prefix_lens)
        if known.track is not None:
            _compare("mamba_track_mask", known.track.mask, forward_batch.mamba_track_mask)
            _compare("mamba_track_seqlens", known.track.seqlens, forward_batch.mamba_track_seqlens)
    return known


def is_prefill(forward_batch: Any) -> bool:
    """Whether a ForwardBatch is a plain or mixed prefill by its mode."""
    return forward_batch.forward_mode.name in _PREFILL_MODES


def attach_track(batch: Any, mask: Sequence[bool], seqlens: Sequence[int]) -> None:
    """Attach to a ScheduleBatch's track tensors what they hold.

    The ForwardBatch gets the same tensors. Padding, merging and filtering make new tensors, which
    do not have it: then `prefill` does not know what is tracked.
    """
    tensors = (batch.mamba_track_mask, batch.mamba_track_seqlens)
    size = len(batch.reqs)
    if all(isinstance(tensor, torch.Tensor) and tensor.shape == (size,) for tensor in tensors):
        track = Track(tuple(map(bool, mask)), tuple(map(int, seqlens)))
        if len(track.mask) == len(track.seqlens) == size:
            for tensor in tensors:
                setattr(tensor, _TRACK, track)


def attach_lens(query_start_loc: torch.Tensor, lens: tuple[int, ...]) -> None:
    """Attach to a ``query_start_loc``, shape ``[batch + 1]``, the lengths that it sums up."""
    if query_start_loc.shape == (len(lens) + 1,):
        setattr(query_start_loc, _LENS, lens)


def lens_of(query_start_loc: Any) -> tuple[int, ...] | None:
    """The lengths that `attach_lens` attached; None without."""
    lens: tuple[int, ...] | None = getattr(query_start_loc, _LENS, None)
    return lens


def offsets(lens: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """``[0, lens[0], lens[0] + lens[1], …]`` on the CPU, shape ``[len(lens) + 1]``."""
    sums = [0]
    for length in lens:
        sums.append(sums[-1] + length)
    return torch.tensor(sums, dtype=dtype)


def batch_on_cpu(forward_batch: Any, known: Prefill, track: Track) -> Any:
    """A copy of a ForwardBatch whose length and track tensors are on the CPU.

    In place of the slots in ``mamba_track_indices`` stand the numbers of the rows that hold them.
    """
    shadow = _shallow(forward_batch)
    for name, values in (
        ("extend_seq_lens", known.lens),
        ("extend_prefix_lens", known.prefixes),
        ("mamba_track_mask", track.mask),
        ("mamba_track_seqlens", track.seqlens),
        ("mamba_track_indices", range(len(known.lens))),
    ):
        dtype = getattr(forward_batch, name).dtype
        setattr(shadow, name, torch.tensor(tuple(values), dtype=dtype))
    return shadow


def backend_on_cpu(backend: Any) -> Any:
    """A shallow copy of an attention backend that builds its tensors on the CPU."""
    shadow = _shallow(backend)
    shadow.device = "cpu"
    return shadow


def to_device(tensors: Sequence[torch.Tensor], device: Any) -> list[torch.Tensor]:
    """Copies of CPU tensors on a device: one for each dtype, without waiting where stock pins."""
    kind = torch.device(device).type
    if kind != "cuda":
        return [tensor.to(device, non_blocking=kind == "cpu") for tensor in tensors]
    pins = is_pinned(device)
    starts: list[int] = []
    sizes: dict[torch.dtype, int] = {}
    for tensor in tensors:
        start = sizes.get(tensor.dtype, 0)
        starts.append(start)
        step = _ALIGNMENT // tensor.dtype.itemsize
        sizes[tensor.dtype] = start + -(-tensor.numel() // step) * step
    moved = {}
    for dtype, size in sizes.items():
        pinned = torch.empty(size, dtype=dtype, pin_memory=pins)
        for start, tensor in zip(starts, tensors, strict=True):
            if tensor.dtype == dtype:
                pinned[start : start + tensor.numel()] = tensor.reshape(-1)
        moved[dtype] = pinned.to(device, non_blocking=pins)
    return [
        moved[tensor.dtype][start : start + tensor.numel()].view(tensor.shape)
        for start, tensor in zip(starts, tensors, strict=True)
    ]


@contextmanager
def staging(target: torch.Tensor) -> Iterator[Any]:
    """A numpy array to be filled within the context, then copied to `target` without waiting.

    Its content is undefined at first. PyTorch's allocator of pinned memory does not reuse memory
    that is still being copied. If stock does not pin memory, the copy waits.
    """
    pins = target.is_cuda and is_pinned(target.device)
    staged = torch.empty(target.shape, dtype=target.dtype, pin_memory=pins)
    yield staged.numpy()
    target.copy_(staged, non_blocking=pins or not target.is_cuda)


def is_busy(device: Any) -> bool:
    """Whether a query of a device would wait for more than what was just launched.

    If not, stock's queries are answered at once, and take less time than what replaces them. It
    polls the current stream for at most as long as the first of those queries would take.
    """
    where = torch.device(device)
    if where.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return True  # no stream, or one that may not be asked
    stream = torch.cuda.current_stream(where)
    until = time.perf_counter() + _SOON
    while not stream.query():
        if time.perf_counter() > until:
            return True
    return False


def is_pinned(device: Any) -> bool:
    """Whether stock pins the memory of its own copies to a CUDA device.

    From 0.5.23 on it does not under confidential computing, where pinned memory is no faster.
    """
    ask: Any = getattr(sys.modules.get("sglang.srt.utils.common"), "is_pin_memory_available", None)
    if ask is None:
        return True
    return bool(ask(device) if ask.__code__.co_argcount else ask())  # 0.5.9 takes no device


def is_debugging() -> bool:
    """Whether ``SGLANG_PERF_PATCHES_DEBUG=1`` turns on the comparison of host and device."""
    return os.environ.get("SGLANG_PERF_PATCHES_DEBUG") == "1"


def check_lens(query_start_loc: torch.Tensor, lens: tuple[int, ...]) -> None:
    """Compare a ``query_start_loc`` with the lengths that it should sum up.

    Raises:
        HostDataMismatch: they differ.
    """
    expected = tuple(offsets(lens, torch.int64).tolist())
    _compare("query_start_loc", expected, query_start_loc)


def _shallow(value: Any) -> Any:
    """A shallow copy. `copy.copy` takes five times as long for an object of many attributes."""
    copied = object.__new__(type(value))
    vars(copied).update(vars(value))
    return copied


def _is_whole(forward_batch: Any) -> bool:
    """Whether no data-parallel padding relabelled the batch, and no two-batch overlap halved it."""
    relabelled = getattr(forward_batch, "_original_forward_mode", None)
    half_of = getattr(forward_batch, "tbo_parent_token_range", None)
    return relabelled is None and half_of is None


def _track(forward_batch: Any, size: int) -> Track | None:
    mask = forward_batch.mamba_track_mask
    seqlens = forward_batch.mamba_track_seqlens
    indices = forward_batch.mamba_track_indices
    if any(tensor is None or tensor.shape != (size,) for tensor in (mask, seqlens, indices)):
        return None
    own_mask: Any = getattr(forward_batch, "mamba_prefill_track_mask_cpu", None)
    own_seqlens: Any = getattr(forward_batch, "mamba_track_seqlens_cpu", None)
    if _is_list(own_mask, size) and _is_list(own_seqlens, size):  # since 0.5.21
        return Track(tuple(own_mask), tuple(own_seqlens))
    track: Track | None = vars(mask).get(_TRACK)
    if track is None or len(track.mask) != size:
        return None
    return track if vars(seqlens).get(_TRACK) is track else None


def _is_list(values: Any, size: int) -> bool:
    return type(values) is list and len(values) == size


def _compare(name: str, known: Sequence[Any], tensor: torch.Tensor) -> None:
    held = tensor.tolist()
    if list(known) != held:
        raise HostDataMismatch(f"{name}: the host has {list(known)}, the device {held}")
