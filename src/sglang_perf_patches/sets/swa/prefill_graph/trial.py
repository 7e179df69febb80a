"""Whether a captured call of FlashAttention gives stock's bits, on drawn data.

Needs torch: imported by the install function and by `verify` only.
"""

from __future__ import annotations

from typing import Any

import torch

from .choices import Kind


def is_equal(
    attention: Any, kind: Kind, page: int, tokens: int, bucket: int, splits: int, like: Any
) -> bool:
    """Whether a request of so many tokens gives the same bits in a bucket as by itself.

    Args:
        attention: the release's ``flash_attn_with_kvcache``.
        kind: of the layer.
        page: tokens of a KV page.
        tokens: of the request, which has no prefix.
        bucket: tokens of the capture.
        splits: what the capture passes.
        like: an empty tensor of the server's device and dtype.
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
