"""The mla patches on a CPU, one file each, and what their checks share.

That is stand-ins for CUDA wheels in the attention backends, above all.
"""

from __future__ import annotations

import sys
from importlib import import_module
from random import Random
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from sglang_perf_patches.stubs import StubFinder, StubModule
from sglang_perf_patches.verify.mla.rig import CONTEXT

CPU = torch.device("cpu")
_ATTENTION = "sglang.srt.layers.attention"


class OnCpu(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """Sends what sglang allocates on device "cuda" by name to the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs = {**kwargs, "device": CPU}
        return func(*args, **kwargs)


def some_lengths(random: Random, most: int, *, least: int = 1) -> list[int]:
    """Prefix lengths of `least` to `most` requests, each with 8 tokens to spare."""
    count = random.randint(least, most)
    return [random.randint(1, CONTEXT - 8) for _ in range(count)]


def trtllm() -> tuple[Any, Any]:
    """The TRT-LLM MLA backend's module, and FlashInfer's, which plans what keeps its plans."""
    parent: Any = import_module(f"{_ATTENTION}.flashinfer_mla_backend")
    wrapper = StubModule("flashinfer").Wrapper
    parent.BatchMLAPagedAttentionWrapper = wrapper
    parent.BatchPrefillWithRaggedKVCacheWrapper = wrapper
    parent.fast_mla_decode_plan = wrapper.begin_forward
    parent.envs.SGLANG_FLASHINFER_WORKSPACE_SIZE.set(0)
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
