"""Translates the window slots of Triton attention without a wait for the GPU.

Stock gathers the slots of all windows into one buffer, and then translates that part of it which is
filled: it slices the buffer by a number on the GPU, twice, and the host waits for it each time.
Where stock has no buffer yet it waits to make one of that length, too.

Here stock fills a given buffer without the pool's table, so it does not translate. Then the most
that windows can fill is translated, and a mask of the GPU's own keeps the rest of the buffer.

Without the wait the host is ahead of the step whose windows are translated. What it does then to
slots and rows must come behind that on the GPU: from 0.5.16 on stock's event loop has a barrier
there (``_apply_war_barrier``), which it puts behind the preparation of a step.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ....model.declaration import Declaration, gains
from ....model.patch import Marker, of
from ..proven import WINDOWS
from ..references import EVICT_WINDOWS, EVICTS, SCHEDULE

_BACKEND = "sglang.srt.layers.attention.triton_backend"
_FILLS = f"{_BACKEND}:update_sliding_window_buffer"
_POOLS = "sglang.srt.mem_cache.swa_memory_pool"
_POOL = f"{_POOLS}:SWAKVPool"
_ATTENTION = f"{_BACKEND}:TritonAttnBackend"
_SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"
_GRAPHS = "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner"
_TRANSLATOR = "sglang.srt.mem_cache.kv_index_translator:KVIndexTranslator"

PATCH = Declaration(
    *(__name__, "0.5.16 … 0.5.21"),
    only_with=("windows", "torch", "triton"),
    gain_with="window-pool",
    proven_with=WINDOWS,
    worth=gains(
        "on 0.5.21, a token of 16 requests to gpt-oss on Triton takes 0.904 of stock's time",
        "swa.md#windows-21-16",
    ),
    upstream=("sgl-project/sglang#38137",),
    upstream_note="which was closed. 0.5.22 translates the slots in the kernel that gathers them",
    built_in_since="0.5.22",
    markers=(Marker(definition=_FILLS, contains="token_mapping"),),
    # It came with the barrier.
    anchors=(f"{SCHEDULE}:NextBatchPlan",),
    absent_because=(
        "before 0.5.16 stock needs the wait: it keeps the last step from freeing slots that the "
        "running step still reads"
    ),
    depends=(
        # Who reads the buffer, and that none does behind the last window's end.
        *of(_ATTENTION, "__init__", "init_forward_metadata", "_update_decode_kv_buffers"),
        *of(_ATTENTION, "forward_extend", "forward_decode", "_forward_extend_unified"),
        "sglang.kernels.ops.attention.extend_attention:build_unified_kv_indices",
        # What translates.
        *of(_POOL, "__init__", "translate_loc_from_full_to_swa"),
        *of(_TRANSLATOR, "fill_packed_read_stream", "reads_are_translated"),
        # What the host does to slots while a step is prepared: it comes behind that on the GPU, and
        # spares the windows of steps that run.
        *of(_SCHEDULER, "event_loop_overlap", "_apply_war_barrier"),
        *of(_GRAPHS, "execute", "_publish_read_done"),
        *EVICTS,
        EVICT_WINDOWS,
    ),
    awaits=(_POOLS,),
    anytime="each call fills its buffer by itself",
)

MOST = 1 << 20
"""The most cells that are translated at once, in tokens: 256 windows of 4,096."""

_TRANSLATES = "translate_loc_from_full_to_swa"

_ARGUMENTS = {
    # Functions of the module gather and translate.
    "… 0.5.18": (2, 5, ""),
    # Slots are gathered from a table of the batch, which may be translated.
    "0.5.19": (2, 4, "is_translated"),
    # An object of the runner gathers, and may translate.
    "0.5.20 …": (3, 5, "reads_are_translated"),
}
"""Of `_FILLS`: the places of the window's size and of the number of requests, which device, pool
and buffer follow; and what the second argument has if it gathers translated slots."""


def _setup(arguments, patch):
    patch.state.known, patch.state.arguments = patch.get(_POOL), arguments


for _spans, _of_spans in _ARGUMENTS.items():
    PATCH.setup(_spans)(partial(_setup, _of_spans))


def _serves(patch, pool, cells, most):
    if most > MOST:
        return False
    if not hasattr(pool, _TRANSLATES):
        return cells is None  # in graphs stock has nothing to wait for
    if type(pool) is not patch.state.known:
        patch.gate(f"windows are translated by {type(pool).__name__}")
        return False
    # What an earlier batch left in the buffer is translated with the rest, and dropped.
    return pool.size_swa + pool.page_size < pool.full_to_swa_index_mapping.numel()


@PATCH.replaces(_FILLS)
def update_sliding_window_buffer(*args, patch, stock):
    size_at, bs_at, is_translated = patch.state.arguments
    most = args[bs_at] * args[size_at]
    device, pool, cells, *rest = args[bs_at + 1 :]
    needs_none = (is_translated and getattr(args[1], is_translated)) or any(rest)
    if needs_none or not _serves(patch, pool, cells, most):
        return stock(*args)
    patch.ran.seen = True
    if cells is None:
        cells = _room(most, device)
    buffers = stock(*args[: bs_at + 2], None, cells, *rest)
    if hasattr(pool, _TRANSLATES):
        _translate(pool, buffers[0][-1], buffers[1][:most])
    return buffers


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
