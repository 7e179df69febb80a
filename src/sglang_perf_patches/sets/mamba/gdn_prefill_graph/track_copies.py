"""Copies of tracked states into the slots that the prefix cache keeps, with a grid of fixed size.

Stock selects the tracked rows first, so the shapes of its copies are the batch's, and a graph can't
hold them. Here each row holds what of it is kept, and a row without anything to keep returns.
Nothing is computed: values are copied, and rounded to the states' dtype as stock's assignment does.

Needs triton: imported by the install function only.
"""

from __future__ import annotations

import triton
import triton.language as tl

NOTHING, FINAL, AT_CHUNK = 0, 1, 2
"""What is kept of a row: nothing, the state after its last token, or, from `AT_CHUNK` on, the state
at the start of a chunk: ``AT_CHUNK + n`` for the batch's chunk `n`."""

WINDOW_WIDTH, STATE_WIDTH = 1024, 8192
"""Values that one program copies: most programs find nothing to copy, so they are few."""


@triton.jit  # type: ignore[untyped-decorator]
def windows(  # type: ignore[no-untyped-def]
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
    """Copy the convolution window of each tracked row: see `Tables.keep_windows`."""
    row = tl.program_id(0)
    if tl.load(kept + row) == 0:
        return
    slot = tl.load(slots + row).to(tl.int64)
    start = tl.load(starts + row)
    last = tl.load(total) - 1  # tokens outside of the batch are its first or last, as in stock
    at = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_there = at < width
    for position in tl.static_range(WINDOW):
        token = tl.minimum(tl.maximum(start + position, 0), last).to(tl.int64)
        value = tl.load(mixed + token * token_stride + at * input_stride, mask=is_there)
        to = conv + slot * slot_stride + at * width_stride + position * window_stride
        tl.store(to, value.to(conv.dtype.element_ty), mask=is_there)


@triton.jit  # type: ignore[untyped-decorator]
def states(  # type: ignore[no-untyped-def]
    at_chunks,
    states,
    kept,
    own,
    slots,
    chunk_stride,
    slot_stride,
    size,
    WIDTH: tl.constexpr,  # noqa: N803
):
    """Copy the recurrent state of each tracked row: see `Tables.keep_states`."""
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
        chunk = (what - 2).to(tl.int64)
        value = tl.load(at_chunks + chunk * chunk_stride + at, mask=is_there)
        tl.store(to, value.to(states.dtype.element_ty), mask=is_there)
