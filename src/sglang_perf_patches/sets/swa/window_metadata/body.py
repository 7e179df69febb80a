"""``swa.window-metadata``: windows are translated up to what the host knows, not up to their end.

Stock gathers the slots of all windows into one buffer, and then translates that part of it which is
filled: it slices the buffer by a number on the GPU, twice, and the host waits for it each time.
Where stock has no buffer yet it waits to make one of that length, too.

Here stock fills a given buffer without the pool's table, so it does not translate.
Then the most that windows can fill is translated, and a mask of the GPU's own keeps the rest of the
buffer as it is.

Without the wait the host is ahead of the step whose windows are translated. What it does then to
slots and rows must come behind that on the GPU: from 0.5.16 on stock's event loop has a barrier
there (``_apply_war_barrier``), which it puts behind the preparation of a step.
"""

from __future__ import annotations

from typing import Any

from ....model.patching import Patching
from . import FILLS, POOL

MOST = 1 << 20
"""The most cells that are translated at once, in tokens: 256 windows of 4,096."""

_TRANSLATES = "translate_loc_from_full_to_swa"


def install(patching: Patching) -> None:
    """0.5.16 to 0.5.18: functions of the module gather and translate."""
    _install(patching, size_at=2, bs_at=5)


def install_with_table(patching: Patching) -> None:
    """0.5.19: slots are gathered from a table of the batch, which may be translated."""
    _install(patching, size_at=2, bs_at=4, source=lambda table: table.is_translated)


def install_with_translator(patching: Patching) -> None:
    """0.5.20 and 0.5.21: an object of the runner gathers, and may translate."""
    _install(patching, size_at=3, bs_at=5, source=lambda each: each.reads_are_translated)


def _install(patching: Patching, size_at: int, bs_at: int, source: Any = None) -> None:
    patching.anytime("each call fills its buffer by itself")
    ran = patching.ran
    known = patching.get(POOL)
    device_at, pool_at, cells_at = range(bs_at + 1, bs_at + 4)

    def serves(pool: Any, cells: Any, most: int) -> bool:
        if most > MOST:
            return False
        if not hasattr(pool, _TRANSLATES):
            return cells is None  # in graphs stock has nothing to wait for
        if type(pool) is not known:
            patching.gate(f"windows are translated by {type(pool).__name__}")
            return False
        # What an earlier batch left in the buffer is translated with the rest, and dropped.
        return bool(pool.size_swa + pool.page_size < pool.full_to_swa_index_mapping.numel())

    def make(inner: Any) -> Any:
        def update_sliding_window_buffer(*args: Any) -> Any:
            most = args[bs_at] * args[size_at]
            pool, cells = args[pool_at], args[cells_at]
            if (source is not None and source(args[1])) or any(args[cells_at + 1 :]):
                return inner(*args)  # slots that need no translation
            if not serves(pool, cells, most):
                return inner(*args)
            ran.seen = True
            if cells is None:
                cells = _room(most, args[device_at])
            buffers = inner(*args[:pool_at], None, cells, *args[cells_at + 1 :])
            if hasattr(pool, _TRANSLATES):
                _translate(pool, buffers[0][-1], buffers[1][:most])
            return buffers

        return update_sliding_window_buffer

    patching.override(FILLS, make)


def _room(most: int, device: Any) -> Any:
    """A new buffer, int64 of shape ``(most,)``: zeros, for what stands behind the windows."""
    import torch

    return torch.zeros(most, dtype=torch.int64, device=device)


def _translate(pool: Any, end: Any, cells: Any) -> None:
    """Put slots of the window pool in the place of those of the full one, in front of `end`.

    `end` is a number on the GPU, where the last window ends.
    """
    import torch

    numbers = torch.arange(cells.numel(), dtype=torch.int32, device=cells.device)
    torch.where(numbers < end, pool.translate_loc_from_full_to_swa(cells), cells, out=cells)
