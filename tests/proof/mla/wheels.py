"""Putting stand-ins for CUDA wheels into the attention backends."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from sglang_perf_patches.stubs import StubFinder, StubModule

_ATTENTION = "sglang.srt.layers.attention"


def flashinfer_mla() -> Any:
    """The FlashInfer MLA backend's module, planning what keeps its plans."""
    module: Any = import_module(f"{_ATTENTION}.flashinfer_mla_backend")
    wrapper = StubModule("flashinfer").Wrapper
    module.BatchMLAPagedAttentionWrapper = wrapper
    module.BatchPrefillWithRaggedKVCacheWrapper = wrapper
    module.fast_mla_decode_plan = wrapper.begin_forward
    module.envs.SGLANG_FLASHINFER_WORKSPACE_SIZE.set(0)
    return module


def trtllm() -> tuple[Any, Any]:
    parent = flashinfer_mla()
    module: Any = import_module(f"{_ATTENTION}.trtllm_mla_backend")
    module._jit_fixup_module = lambda *_: None  # CUDA, compiled at first use
    module._multi_ctas_kv_counter_bytes = lambda *_: 0
    module.can_use_set_mla_kv_concat_q = lambda *_, **__: False
    module.DEFAULT_WORKSPACE_SIZE_MB = 0  # the kernel's scratch, 128 MB
    return module, parent


def hybrid() -> Any:
    """The hybrid backend's module; with it 0.5.15 imports kernels that CUTLASS's wheel compiles."""
    sys.meta_path.insert(0, StubFinder(("sglang.jit_kernel.dsa.cutedsl_paged_mqa_logits",)))
    return import_module(f"{_ATTENTION}.hybrid_attn_backend")
