"""What captured attention layers read, and which requests they compute as stock's layers do.

Needs torch: imported by the install function only.

The lengths of a sequence are on the device, and a captured kernel reads them at each replay. But
FlashAttention 3 makes three choices before the launch, by numbers of the host: of new tokens and
the width of the page table. They are whether a window is as long as the table (then the kernel has
none, and other tiles), whether KV is copied by whole pages, and into how many parts the keys may be
split. Where a batch and a bucket give the same choices, the captured kernel computes the same. See
``hopper/flash_api.cpp``, ``heuristics.h`` and ``tile_size.h`` in sgl-project/sgl-attn.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Kind:
    """Layers for which FlashAttention chooses alike; heads are those of this rank."""

    window: int  # tokens to the left that a token attends to; -1 for all
    heads: int
    kv_heads: int
    width: int  # values of a head of queries and keys, 16 bits each
    value_width: int


@dataclass(frozen=True)
class Choice:
    """What is chosen before the launch: see the module."""

    has_window: bool
    by_pages: bool
    splits: int


def choice(kind: Kind, tokens: int, length: int, page: int, units: int) -> Choice:
    """What a call for one request chooses, in a causal layer.

    It has `tokens` new tokens, at least 2, of its `length`, and the GPU `units` multiprocessors.
    """
    length = ceil(length / page) * page
    has_window = 0 <= kind.window < length - 1
    packed = kind.heads // kind.kv_heads
    rows, columns = _tile(kind, has_window, by_pages=True)
    by_pages = page % columns == 0 and tokens * packed > rows
    rows, columns = _tile(kind, has_window, by_pages)
    loaded = min(length, kind.window + 1 + rows) if has_window else length
    blocks = ceil(tokens * packed / rows) * kind.kv_heads
    return Choice(has_window, by_pages, _splits(blocks, ceil(loaded / columns), units))


def _tile(kind: Kind, has_window: bool, by_pages: bool) -> tuple[int, int]:
    """Rows and columns of a block of a causal layer's scores."""
    narrow = has_window or not by_pages
    if kind.width <= 64:
        return 192, 128
    if kind.width <= 96:
        return 192, 128 if narrow else 144
    if kind.width <= 128:
        return 128, 128
    if kind.width <= 192:
        return 128, 96 if narrow else 128 if kind.value_width <= 128 else 112
    return 128, 64 if has_window else 80


def _splits(blocks: int, columns: int, units: int) -> int:
    """The fewest parts, of at most 128, that keep the GPU nearly as busy as any number of them."""
    if np.float32(blocks) >= np.float32(0.8) * units or columns <= 4:
        return 1
    most = min(128, units, columns)
    waves = np.arange(1, most + 1, dtype=np.float32) * np.float32(blocks) / np.float32(units)
    used = waves / np.ceil(waves)
    return int(np.argmax(used >= 0.85 * used.max().astype(np.float64))) + 1


class Inputs:
    """Tensors that all buckets of a runner share, of which a replay reads those of one batch."""

    def __init__(self, backend: Any, tokens: int, kinds: dict[int, Kind]) -> None:
        """Allocate, for buckets of up to so many tokens of a FlashAttentionBackend."""
        device = backend.device
        self.kinds = kinds  # each layer's number → its kind
        self.page = int(backend.page_size)  # in tokens
        self.units = torch.cuda.get_device_properties(device).multi_processor_count
        self._lengths = torch.zeros(5, dtype=torch.int32, device=device)
        self._table = torch.zeros((1, backend.max_num_pages), dtype=torch.int32, device=device)
        self._has_windows = bool(backend.use_sliding_window_kv_pool)
        if self._has_windows:
            self._window_table = torch.zeros_like(self._table)
            self._window_slots = torch.zeros(tokens, dtype=torch.int64, device=device)
        self._numbers = torch.arange(tokens, dtype=torch.int32, device=device)
        self.unused = torch.ones(tokens, dtype=torch.bool, device=device)  # rows of no token

    def metadata(self, stocks: Any, tokens: int) -> Any:
        """Stock's FlashAttentionMetadata of a capture of so many tokens, on these tensors."""
        made = copy.copy(stocks)
        made.cache_seqlens_int32 = self._lengths[:1]
        made.cu_seqlens_q, made.cu_seqlens_k = self._lengths[1:3], self._lengths[3:]
        # Its width decides; the kernel reads as far as the request's length, also past the view.
        pages = stocks.page_table.shape[1]
        made.page_table = self._table[:, :pages]
        if self._has_windows:
            made.swa_page_table = self._window_table[:, :pages]
            made.swa_out_cache_loc = self._window_slots[:tokens]
        return made

    def choices(self, tokens: int, length: int) -> dict[Kind, Choice]:
        """What each kind of layer chooses for a request of new tokens and a length with them."""
        kinds = set(self.kinds.values())
        return {each: choice(each, tokens, length, self.page, self.units) for each in kinds}

    def fill(self, metadata: Any, tokens: int, bucket: int) -> None:
        """Copy stock's metadata of a batch of so many tokens."""
        lengths = (metadata.cache_seqlens_int32, metadata.cu_seqlens_q, metadata.cu_seqlens_k)
        torch.cat(lengths, out=self._lengths)
        pages = metadata.page_table.shape[1]
        self._table[:, :pages].copy_(metadata.page_table)
        if self._has_windows:
            self._window_table[:, :pages].copy_(metadata.swa_page_table)
            self._window_slots[:tokens].copy_(metadata.swa_out_cache_loc[:tokens])
            self._window_slots[tokens:bucket].zero_()  # rows of no token write where nobody reads
        torch.ge(self._numbers, tokens, out=self.unused)

    def agree(self, attention: Any, buckets: list[int], like: Any) -> bool:
        """Whether drawn requests, without a prefix, give stock's bits in buckets, in order.

        `attention` is the release's ``flash_attn_with_kvcache``, `like` an empty tensor of the
        server's device and dtype.
        """
        for smaller, bucket in zip([1, *buckets], buckets, strict=False):
            captured = self.choices(bucket, bucket)
            for tokens in {smaller + 1, (smaller + 1 + bucket) // 2, bucket}:
                for kind, chosen in self.choices(tokens, tokens).items():
                    given = (attention, kind, self.page, tokens, bucket, chosen.splits, like)
                    if chosen == captured[kind] and not _is_equal(*given):
                        return False
        return True


def _is_equal(
    attention: Any, kind: Kind, page: int, tokens: int, bucket: int, splits: int, like: Any
) -> bool:
    draw = torch.Generator(like.device).manual_seed(tokens)
    pages = -(-bucket // page)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, device=like.device, dtype=like.dtype)

    q = drawn(bucket, kind.heads, kind.width)
    lengths = torch.tensor([0, tokens], dtype=torch.int32, device=like.device)
    table = torch.arange(pages, dtype=torch.int32, device=like.device).view(1, -1)
    given = {
        "k_cache": drawn(pages, page, kind.kv_heads, kind.width),
        "v_cache": drawn(pages, page, kind.kv_heads, kind.value_width),
        "cache_seqlens": lengths[1:],
        "cu_seqlens_q": lengths,
        "cu_seqlens_k_new": lengths,
        "softmax_scale": kind.width**-0.5,
        "causal": True,
        "window_size": (kind.window, 0) if kind.window > -1 else (-1, -1),
        "ver": 3,
    }
    own = attention(
        q=q[:tokens], page_table=table[:, : -(-tokens // page)], max_seqlen_q=tokens, **given
    )
    ours = attention(q=q, page_table=table, max_seqlen_q=bucket, num_splits=splits, **given)
    return bool(torch.equal(own, ours[:tokens]))
