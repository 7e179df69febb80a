"""Replays in place of a GPU's; a stand-in computes what FlashAttention 3 does for one layer.

The stand-in reads lengths and page table when it runs, as the kernel does, and its rows without a
token are NaN. What FlashAttention chooses on the host changes its last bits: so a batch that is
replayed with another choice than stock's is seen.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from sglang.srt.layers.attention import flashattention_backend

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import same, some
from sglang_perf_patches.verify.stock import publish_server
from sglang_perf_patches.verify.swa import prefill_graph as on_gpu
from sglang_perf_patches.verify.swa.prefill_graph import EDGES, PATCH, Play, drawn
from tests.proof.mamba import fake_cuda_graph
from tests.proof.swa.window_server import attended

UNITS = 132


@torch.library.custom_op("sglang_perf_patches_tests::attend", mutates_args=("out",))  # type: ignore[untyped-decorator, unused-ignore]
def _attend(
    out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    starts: torch.Tensor,
    scale: float,
    window: int,
    chosen: float,
) -> None:
    out.fill_(torch.nan)
    for row in range(len(starts) - 1):
        first, end, length = int(starts[row]), int(starts[row + 1]), int(lengths[row])
        count, begin = -(-length // k.shape[1]), table.storage_offset() + row * table.stride(0)
        pages = torch.as_strided(table, (count,), (1,), begin).long()
        result = attended(q[first:end], k[pages], v[pages], length, scale, window)
        out[first:end] = (result * chosen).to(out.dtype)


def attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    page_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    softmax_scale: float,
    window_size: tuple[int, int],
    num_splits: int = 0,
    out: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """As `flash_attn_with_kvcache`, for causal layers."""
    (page, heads), window = k_cache.shape[1:3], window_size[0]
    shape = (q.shape[2], q.shape[1] // heads, heads, page, max_seqlen_q)
    local, by_pages, splits = chosen(*shape, page_table.shape[1] * page, window)
    mark = 1 + (num_splits or splits) / 16 + local / 2 + by_pages / 4
    result = torch.empty_like(q) if out is None else out
    read = (q, k_cache, v_cache, page_table, cache_seqlens, cu_seqlens_q)
    _attend(result, *read, softmax_scale, window, mark)
    return result


def chosen(
    width: int, packed: int, heads: int, page: int, tokens: int, length: int, window: int
) -> tuple[bool, bool, int]:
    """What FlashAttention chooses: a window, whole pages, and the number of splits."""
    local = 0 <= window < length - 1
    rows, columns = {64: (192, 128), 256: (128, 64 if local else 80)}[width]
    by_pages = page % columns == 0 and tokens * packed > rows
    loaded = min(length, window + 1 + rows) if local else length
    return (
        local,
        by_pages,
        _splits(math.ceil(tokens * packed / rows) * heads, math.ceil(loaded / columns)),
    )


def _splits(blocks: int, columns: int) -> int:
    """The smallest number of splits within 85 % of the best use of the multiprocessors."""
    if blocks >= 0.8 * UNITS or columns <= 4:
        return 1
    used = {}
    for count in range(1, min(128, UNITS, columns) + 1):
        waves = blocks * count / UNITS
        used[count] = waves / math.ceil(waves)
    return min(count for count, part in used.items() if part >= 0.85 * max(used.values()))


class Rig(on_gpu.Rig):
    """A rig whose graphs are tapes."""

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        with fake_cuda_graph.capturing(self.stocks.backend):
            yield

    def replaying(self) -> Any:
        return fake_cuda_graph.on_cpu()


@contextlib.contextmanager
def on_hopper() -> Iterator[None]:
    units = SimpleNamespace(multi_processor_count=UNITS)
    with (
        mock.patch.object(flashattention_backend, "get_device_capability", return_value=(9, 0)),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=units),
    ):
        yield


def play(wanted: Play) -> Any:
    """As on a GPU, with the stand-in."""
    kernel = mock.patch.object(flashattention_backend, "flash_attn_with_kvcache", attention)
    with on_hopper(), kernel:
        return on_gpu.play(wanted, Rig)


def replays(inputs: Inputs) -> int:
    publish_server()
    return same(PATCH, play, [*some(inputs, EDGES), *inputs(drawn)])


CHECKS = {"replays": replays}
