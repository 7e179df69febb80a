"""``mlx.cache-growth``: a request's buffer grows when a batched decode reaches its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...model.patching import Patching

CONTIGUOUS = "sglang.srt.hardware_backend.mlx.kv_cache.contiguous_cache:ContiguousKVCache"
"""The cache of one request and layer, up to 0.5.12.post1."""

ATTENTION = "sglang.srt.hardware_backend.mlx.kv_cache.attention_kv_cache:ContiguousAttentionKVCache"
"""The same cache, from 0.5.13 on."""


def install_contiguous(patching: Patching) -> None:
    """Let `CONTIGUOUS` grow."""
    _install(patching, CONTIGUOUS)


def install_attention(patching: Patching) -> None:
    """Let `ATTENTION` grow."""
    _install(patching, ATTENTION)


def _install(patching: Patching, cache: str) -> None:
    ran = patching.ran
    patching.anytime("what has grown is stock's own buffer, which stock's code reads")

    def make(inner: Callable[..., None]) -> Callable[..., None]:
        def write_token(self: Any, k: Any, v: Any) -> None:
            """Grow a full buffer, then write; k and v are (1, n_kv_heads, 1, head_dim)."""
            if self.offset >= self.max_seq_len:
                self._grow(self.offset + 1)
                ran.seen = True
            inner(self, k, v)

        return write_token

    patching.override(f"{cache}.write_token", make)
