"""Which prefill kernels are captured, and which the graph breaks at."""

from __future__ import annotations

from typing import Any

from ..references import ATTENTION
from . import FLA

_FLASHINFER = "FlashInferGDNKernel"


def unserved(backend: Any, modules: Any) -> str | None:
    """Why a backend's prefill stays as stock runs it; None if it can be captured.

    Args:
        backend: a GDNAttnBackend that has just been made.
        modules: returns an imported module by its name.
    """
    gdn = modules(f"{ATTENTION}.linear.gdn_backend")
    own = backend.kernel_dispatcher.extend_kernel
    cache = backend.req_to_token_pool.mamba_pool.mamba_cache
    if type(backend) is not gdn.GDNAttnBackend:
        return f"{type(backend).__name__} runs other kernels"
    if modules("sglang.srt.environ").envs.SGLANG_DISABLE_KDA_PREFILL_GRAPH_EXTEND.get():
        return "SGLANG_DISABLE_KDA_PREFILL_GRAPH_EXTEND is set"
    if not all(held[0].is_contiguous() for held in (*cache.conv, cache.temporal)):
        return "the states of a layer are not contiguous"
    if type(own) is gdn.TritonGDNKernel:
        return _other_chunks(modules)
    if type(own).__name__ != _FLASHINFER:
        return f"{type(own).__name__} was not captured in any proof"
    if own.use_state_pool or own._prefill_needs_fp32_state:
        return "FlashInfer's kernel is another one on this GPU"
    if str(cache.temporal.dtype) != "torch.float32":
        return f"FlashInfer's kernel would convert states of {cache.temporal.dtype}"
    return None


def breaks(backend: Any) -> bool:
    """Whether a served backend's kernel stays outside of the graph."""
    return type(backend.kernel_dispatcher.extend_kernel).__name__ == _FLASHINFER


def _other_chunks(modules: Any) -> str | None:
    from . import prefill_tables

    for name in ("chunk", "chunk_delta_h"):
        tokens = modules(f"{FLA}.{name}").CHUNK_SIZE
        if tokens != prefill_tables.CHUNK:
            return f"stock's chunks have {tokens} tokens; ours have {prefill_tables.CHUNK}"
    return None
