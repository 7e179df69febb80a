"""Copies of tracked states into the slots that the prefix cache keeps, with a grid of fixed size.

Stock selects the tracked rows first, so the shapes of its copies are the batch's, and a graph can't
hold them. Here each row holds what of it is kept, and a row without anything to keep returns.
Nothing is computed: values are copied, and rounded to the states' dtype as stock's assignment does.

Needs triton: imported by the install function only.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

NOTHING, FINAL, AT_CHUNK = 0, 1, 2
"""What is kept of a row: nothing, the state after its last token, or the one at a chunk's start."""

_WINDOW = 1024
_STATE = 8192
"""Values that one program copies: most programs find nothing to copy, so they are few."""


@triton.jit  # type: ignore[untyped-decorator]
def _windows(  # type: ignore[no-untyped-def]
    mixed,
    conv,
    kept,
    starts,
    slots,
    total,
    token_stride,
    input_stride,
    slot_stride,
    width_stride,
    window_stride,
    width,
    WINDOW: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    if tl.load(kept + row) == 0:
        return
    slot = tl.load(slots + row).to(tl.int64)
    start = tl.load(starts + row)
    last = tl.load(total) - 1
    at = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_there = at < width
    for position in tl.static_range(WINDOW):
        token = tl.minimum(tl.maximum(start + position, 0), last).to(tl.int64)
        value = tl.load(mixed + token * token_stride + at * input_stride, mask=is_there)
        to = conv + slot * slot_stride + at * width_stride + position * window_stride
        tl.store(to, value.to(conv.dtype.element_ty), mask=is_there)


@triton.jit  # type: ignore[untyped-decorator]
def _states(  # type: ignore[no-untyped-def]
    at_chunks,
    states,
    kept,
    chunks,
    own,
    slots,
    chunk_stride,
    slot_stride,
    size,
    WIDTH: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    what = tl.load(kept + row)
    if what == 0:
        return
    slot = tl.load(slots + row).to(tl.int64)
    at = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_there = at < size
    to = states + slot * slot_stride + at
    if what == 1:
        source = tl.load(own + row).to(tl.int64)
        tl.store(to, tl.load(states + source * slot_stride + at, mask=is_there), mask=is_there)
    else:
        chunk = tl.load(chunks + row).to(tl.int64)
        value = tl.load(at_chunks + chunk * chunk_stride + at, mask=is_there)
        tl.store(to, value.to(states.dtype.element_ty), mask=is_there)


def windows(
    mixed: torch.Tensor,
    conv: torch.Tensor,
    *,
    kept: torch.Tensor,
    starts: torch.Tensor,
    slots: torch.Tensor,
    total: torch.Tensor,
) -> None:
    """Copy each tracked row's convolution window.

    Args:
        mixed: input to the convolution, of shape ``[tokens, width]``.
        conv: states of the convolution, of shape ``[slots, width, window]``.
        kept: `NOTHING` or something else, int32 of shape ``[rows]``.
        starts: the token at which the window starts; tokens before the first and after the last
            are taken to be those, as stock does. int32 of shape ``[rows]``.
        slots: where to, int64 of shape ``[rows]``.
        total: tokens of the batch, int32 of shape ``[1]``.
    """
    width, window = conv.shape[1:]
    _windows[(kept.shape[0], triton.cdiv(width, _WINDOW))](
        mixed,
        conv,
        kept,
        starts,
        slots,
        total,
        *mixed.stride(),
        *conv.stride(),
        width,
        WINDOW=window,
        WIDTH=_WINDOW,
    )


def states(
    at_chunks: torch.Tensor,
    held: torch.Tensor,
    *,
    kept: torch.Tensor,
    chunks: torch.Tensor,
    own: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Copy each tracked row's recurrent state.

    Args:
        at_chunks: states at the starts of chunks, contiguous, of shape ``[chunks, …]``.
        held: the states, of shape ``[slots, …]``, each contiguous.
        kept: `NOTHING`, `FINAL` or `AT_CHUNK`, int32 of shape ``[rows]``.
        chunks: which chunk, for `AT_CHUNK`, int32 of shape ``[rows]``.
        own: the row's own slot, for `FINAL`, of shape ``[rows]``.
        slots: where to, int64 of shape ``[rows]``.
    """
    size: Any = held[0].numel()
    _states[(kept.shape[0], triton.cdiv(size, _STATE))](
        at_chunks,
        held,
        kept,
        chunks,
        own,
        slots,
        at_chunks.stride(0),
        held.stride(0),
        size,
        WIDTH=_STATE,
        num_warps=8,
    )
