"""The kernel that packs the tree masks of a verify into bits, as FlashInfer's attention reads them.

It imports Triton, so it is imported when it is first needed.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

_BLOCK = 256
"""Bytes that one program packs."""


def pack(mask: Any, starts: Any, packed: Any, most: int) -> None:
    """Pack the cells of each request, the first of eight into the lowest bit of a byte.

    Args:
        mask: bool, (cells,) or more: the cells of one request after the other's.
        starts: int32, (2, requests + 1): where each request's cells begin, then its bytes.
        packed: uint8, gets the bytes. A request's last byte is filled up with zeros.
        most: cells of the request that has most.
    """
    requests = starts.shape[1] - 1
    grid = (requests, triton.cdiv(most, 8 * _BLOCK))
    _pack[grid](mask, starts, packed, starts.shape[1], block=_BLOCK)


@triton.jit  # type: ignore[untyped-decorator]
def _pack(mask, starts, packed, row, block: tl.constexpr):  # type: ignore[no-untyped-def]
    request = tl.program_id(0)
    first = tl.load(starts + request)
    cells = tl.load(starts + request + 1) - first
    out = tl.load(starts + row + request)
    byte = tl.program_id(1) * block + tl.arange(0, block)
    bit = tl.arange(0, 8)
    cell = byte[:, None] * 8 + bit[None, :]
    seen = tl.load(mask + first + cell, mask=cell < cells, other=0) != 0
    value = tl.sum(tl.where(seen, 1 << bit[None, :], 0), axis=1)
    tl.store(packed + out + byte, value.to(tl.uint8), mask=byte * 8 < cells)
