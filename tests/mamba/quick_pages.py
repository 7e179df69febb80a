"""The kernels that hand out pages of KV and note them in rows, computed by PyTorch.

Triton's interpreter would take four fifths of an episode for them, and no patch changes them. Each
sixteenth launch is computed by the kernel too, and must give the same.
"""

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

COMPARED = 16
"""One in so many launches of a kernel is compared."""


def lend() -> None:
    """Put them where the release's paged allocator looks for its kernels."""
    kinds = importlib.import_module("sglang.srt.mem_cache.allocator")
    module: Any = sys.modules[kinds.PagedTokenToKVPoolAllocator.__module__]
    module.alloc_decode_kernel = _Kernel(module.alloc_decode_kernel, decode, 3)
    module.alloc_extend_kernel = _Kernel(module.alloc_extend_kernel, extend, 4)
    with suppress(ModuleNotFoundError):  # older releases draft without
        rows: Any = importlib.import_module("sglang.srt.mem_cache.allocation")
        rows.assign_req_to_token_pool_func = _Rows(rows.assign_req_to_token_pool_func)


def decode(
    lengths: torch.Tensor, last: torch.Tensor, free: torch.Tensor, out: torch.Tensor, page: int
) -> None:
    """A slot for one more token of each request, into `out`.

    `lengths`, `last` and `out` are (batch,): tokens with the new one, and slots. `free` has the
    pages in the order in which they are taken.
    """
    begins = (lengths - 1) % page == 0
    pages = free[(torch.cumsum(begins, 0) - 1).clamp(min=0)]
    out.copy_(torch.where(begins, pages * page, last + 1))


def extend(
    before: torch.Tensor,
    lengths: torch.Tensor,
    last: torch.Tensor,
    free: torch.Tensor,
    out: torch.Tensor,
    page: int,
) -> None:
    """Slots for all new tokens of each request, one request's behind the other's.

    `before` and `lengths` are tokens without and with the new ones; see `decode`.
    """
    start = taken = 0
    for old, new, slot in zip(before.tolist(), lengths.tolist(), last.tolist(), strict=True):
        full = -(-old // page) * page  # what its last page has room for
        inside = min(new, full) - old
        out[start : start + inside] = torch.arange(slot + 1, slot + 1 + inside)
        behind = torch.arange(full, new)
        pages = free[taken + (behind - full) // page]
        out[start + inside : start + new - old] = pages * page + behind % page
        taken += -(-new // page) - full // page
        start += new - old


class _Rows:
    """Notes the slots that drafts get, as stock's function does."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._launches = 0

    def __call__(self, rows: Any, table: Any, starts: Any, ends: Any, slots: Any, n: int) -> None:
        expected = table.clone() if self._launches % COMPARED == 0 else None
        taken = 0
        for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
            table[row, start:end] = slots[taken : taken + end - start]
            taken += end - start
        if expected is not None:
            self._function(rows, expected, starts, ends, slots, n)
            assert torch.equal(table, expected), (rows, starts, ends, slots)
        self._launches += 1


class _Kernel:
    def __init__(self, kernel: Any, compute: Callable[..., None], tensors: int) -> None:
        """`kernel` has so many tensors before its output, and its page size two behind that."""
        self._kernel, self._compute, self._tensors = kernel, compute, tensors
        self._launches = 0

    def __getitem__(self, grid: Any) -> Any:
        return partial(self._launch, grid)

    def _launch(self, grid: Any, *arguments: Any) -> None:
        *given, out = arguments[: self._tensors + 1]
        self._compute(*given, out, arguments[self._tensors + 2])
        if self._launches % COMPARED == 0:
            expected = torch.full_like(out, -1)
            self._kernel[grid](*given, expected, *arguments[self._tensors + 1 :])
            assert torch.equal(out, expected), (given, out, expected)
        self._launches += 1
