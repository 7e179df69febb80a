"""What captured attention layers read: a prefill of one request, at fixed addresses.

Needs torch: imported by the install function only.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from .choices import Choice, Kind, choice


class Inputs:
    """Tensors that all buckets of a runner share, of which a replay reads those of one batch.

    Attributes:
        kinds: each layer's number → its kind.
        page: tokens of a KV page.
        units: multiprocessors of the GPU.
        unused: whether a row of a bucket has no token, bool of shape ``[tokens]``.
    """

    def __init__(self, backend: Any, tokens: int, kinds: Mapping[int, Kind], device: Any) -> None:
        """Allocate, for buckets of up to so many tokens of a FlashAttentionBackend."""
        self.kinds = dict(kinds)
        self.page = int(backend.page_size)
        self.units = torch.cuda.get_device_properties(device).multi_processor_count
        self._lengths = torch.zeros(5, dtype=torch.int32, device=device)
        self._table = torch.zeros((1, backend.max_num_pages), dtype=torch.int32, device=device)
        self._window_table = self._window_slots = None
        if backend.use_sliding_window_kv_pool:
            self._window_table = torch.zeros_like(self._table)
            self._window_slots = torch.zeros(tokens, dtype=torch.int64, device=device)
        self._numbers = torch.arange(tokens, dtype=torch.int32, device=device)
        self.unused = torch.ones(tokens, dtype=torch.bool, device=device)

    def metadata(self, stocks: Any, tokens: int) -> Any:
        """Stock's FlashAttentionMetadata of a capture of so many tokens, on these tensors."""
        made = copy.copy(stocks)
        made.cache_seqlens_int32 = self._lengths[:1]
        made.cu_seqlens_q, made.cu_seqlens_k = self._lengths[1:3], self._lengths[3:]
        # Its width decides; the kernel reads as far as the request's length, also past the view.
        pages = stocks.page_table.shape[1]
        made.page_table = self._table[:, :pages]
        if self._window_table is not None and self._window_slots is not None:
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
        if self._window_table is not None and self._window_slots is not None:
            self._window_table[:, :pages].copy_(metadata.swa_page_table)
            self._window_slots[:tokens].copy_(metadata.swa_out_cache_loc[:tokens])
            self._window_slots[tokens:bucket].zero_()  # rows of no token write where nobody reads
        torch.ge(self._numbers, tokens, out=self.unused)


def is_equal(
    attention: Any, kind: Kind, page: int, tokens: int, bucket: int, splits: int, like: Any
) -> bool:
    """Whether a request of so many tokens, without a prefix, gives the same bits in a bucket.

    `attention` is the release's ``flash_attn_with_kvcache``, `page` are tokens of a KV page, and
    `bucket` those of the capture, which passes `splits`. `like` is an empty tensor of the server's
    device and dtype.
    """
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
