"""``mlx.pool-write``: what a request leaves to the radix cache's pool is a copy of its tokens.

Stock queues the write: the pool's next array refers to the request's buffers until somebody reads
the pool. MLX keeps those buffers whole for as long, and copies them where they are to be written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...model.patching import Patching

_MLX = "sglang.srt.hardware_backend.mlx"
KV_POOL = f"{_MLX}.kv_cache.kv_pool:MlxKVPool"
"""The pool to 0.5.12.post1."""

ATTENTION_POOL = f"{_MLX}.kv_cache.attention_kv_pool:MlxAttentionKVPool"
"""The same pool from 0.5.13 on."""

PREFILL_FINALIZE = f"{_MLX}.model_runner:MlxModelRunner.prefill_finalize"

_BEING_READ = "_sglang_perf_patches_being_read"


def install_contiguous(patching: Patching) -> None:
    """Serve 0.5.11 to 0.5.12.post1."""
    _install(patching, KV_POOL, "_kv_pool")


def install_attention(patching: Patching) -> None:
    """Serve releases from 0.5.13 on."""
    _install(patching, ATTENTION_POOL, "_attention_kv_pool")


def _install(patching: Patching, pool: str, attribute: str) -> None:
    core: Any = patching.module("mlx.core")
    ran = patching.ran

    def make_set(inner: Callable[..., None]) -> Callable[..., None]:
        def set_kv_all_layers(self: Any, slots: Any, k_all: Any, v_all: Any) -> None:
            """Write (layers, tokens, n_kv_heads, head_dim) into the slots, with the step."""
            inner(self, slots, k_all, v_all)
            ran.seen = True
            if vars(self).get(_BEING_READ):
                # Until the prefill that reads the pool is done, MLX would copy the pool to write
                # into it. The tokens are copied now; the next write or read takes them along.
                core.async_eval(k_all, v_all)
            else:
                core.async_eval(self.k_buffer, self.v_buffer)

        return set_kv_all_layers

    def make_get(inner: Callable[..., Any]) -> Callable[..., Any]:
        def get_kv(self: Any, layer_id: int, slots: Any) -> Any:
            """Note that a prefill reads the pool."""
            setattr(self, _BEING_READ, True)
            return inner(self, layer_id, slots)

        return get_kv

    def make_finalize(inner: Callable[..., int]) -> Callable[..., int]:
        def prefill_finalize(self: Any, pending: Any) -> int:
            """Note that it has, after stock has waited for the prefill's token."""
            token = inner(self, pending)
            read = getattr(self, attribute)
            if read is not None:
                setattr(read, _BEING_READ, False)
            return token

        return prefill_finalize

    patching.override(f"{pool}.set_kv_all_layers", make_set)
    patching.override(f"{pool}.get_kv", make_get)
    patching.override(PREFILL_FINALIZE, make_finalize)
