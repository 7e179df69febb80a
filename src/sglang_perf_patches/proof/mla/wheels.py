"""Putting stand-ins for CUDA wheels into the attention backends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

from ..lent import StandIns, Wrapper

_ATTENTION = "sglang.srt.layers.attention"


def flashinfer() -> Any:
    """The FlashInfer backend's module, planning what keeps its plans."""
    module: Any = import_module(f"{_ATTENTION}.flashinfer_backend")
    for kind in ("DecodeWithPaged", "PrefillWithRagged"):
        setattr(module, f"Batch{kind}KVCacheWrapper", Wrapper)
    module.BatchPrefillWithPagedKVCacheWrapper = PagedWrapper
    module.fast_decode_plan = Wrapper.begin_forward
    module.envs.SGLANG_FLASHINFER_WORKSPACE_SIZE.set(0)
    module.should_use_tensor_core = lambda **_: False
    return module


def flashinfer_mla() -> Any:
    """The FlashInfer MLA backend's module, likewise."""
    module: Any = import_module(f"{_ATTENTION}.flashinfer_mla_backend")
    module.BatchMLAPagedAttentionWrapper = MLAWrapper
    module.BatchPrefillWithRaggedKVCacheWrapper = Wrapper
    module.fast_mla_decode_plan = Wrapper.begin_forward
    module.envs.SGLANG_FLASHINFER_WORKSPACE_SIZE.set(0)
    return module


class PagedWrapper(Wrapper):
    """Plans as the wheel's wrapper of paged prefills does, up to the kernel's own plan.

    Attributes:
        device: where its buffers are.
        plans: what the kernel's own plan was called with.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Hold the buffers of a graph, if it is for one."""
        super().__init__(*arguments, **options)
        self.device = torch.device("cpu")
        self._backend = options.get("backend")
        self._cached_module = SimpleNamespace(plan=super().plan)
        self._max_total_num_rows: int | None = None
        self._qo_indptr_buf: Any = options.get("qo_indptr_buf")
        self._paged_kv_indptr_buf: Any = options.get("paged_kv_indptr_buf")
        self._paged_kv_indices_buf: Any = options.get("paged_kv_indices_buf")
        self._paged_kv_last_page_len_buf: Any = options.get("paged_kv_last_page_len_buf")
        self._custom_mask_buf: Any = options.get("custom_mask_buf")
        self._mask_indptr_buf: Any = options.get("mask_indptr_buf")
        self._float_workspace_buffer = torch.empty(0)
        self._int_workspace_buffer = torch.empty(0)
        self._pin_memory_int_workspace_buffer = torch.empty(0)

    def plan(
        self,
        qo_indptr: Any,
        kv_indptr: Any,
        kv_indices: Any,
        last_page_len: Any,
        *heads: Any,
        custom_mask: Any = None,
        fixed_split_size: Any = None,
        **_options: Any,
    ) -> None:
        """Copy the layout to the host, pack the mask, fill the graph's buffers."""
        qo, kv, last = (value.to("cpu") for value in (qo_indptr, kv_indptr, last_page_len))
        lens = kv[1:] - kv[:-1] - 1 + last  # pages of one token
        if self.is_cuda_graph_enabled:
            self._qo_indptr_buf.copy_(qo_indptr)
            self._paged_kv_indptr_buf.copy_(kv_indptr)
            self._paged_kv_last_page_len_buf.copy_(last_page_len)
            self._paged_kv_indices_buf[: len(kv_indices)].copy_(kv_indices)
        if custom_mask is not None:
            packed, starts = packed_mask(custom_mask, ((qo[1:] - qo[:-1]) * lens).tolist())
            if self.is_cuda_graph_enabled:
                self._custom_mask_buf[: len(packed)].copy_(packed)
                self._mask_indptr_buf.copy_(starts)
            else:
                self._custom_mask_buf, self._mask_indptr_buf = packed, starts
        if self._max_total_num_rows is None:
            self._max_total_num_rows = int(qo[-1])
        query_heads, kv_heads, size, page = heads
        workspaces = (
            self._float_workspace_buffer,
            self._int_workspace_buffer,
            self._pin_memory_int_workspace_buffer,
        )
        layout = (qo, kv, lens, self._max_total_num_rows, len(last), query_heads, kv_heads, page)
        graph = (self.is_cuda_graph_enabled, size, size, False, -1)
        split = (fixed_split_size or -1, False, 0, 0)
        self._cached_module.plan(*workspaces, *layout, *graph, *split)

    begin_forward = plan


def packed_mask(mask: Any, cells: list[int]) -> tuple[Any, Any]:
    """The bits of a mask, request by request, eight in a byte; and where each begins."""
    parts, at = [], 0
    for count in cells:
        bits = torch.zeros(-(-count // 8) * 8, dtype=torch.int64)
        bits[:count] = mask[at : at + count]
        parts.append((bits.view(-1, 8) << torch.arange(8)).sum(1).to(torch.uint8))
        at += count
    sizes = torch.tensor([0, *(len(part) for part in parts)], dtype=torch.int32)
    return torch.cat(parts), torch.cumsum(sizes, 0, dtype=torch.int32)


class MLAWrapper(Wrapper):
    """Keeps also what its plan reads on the host: both indptrs and the lengths."""

    def plan(self, *arguments: Any, **options: Any) -> None:
        """Plan with ``qo_indptr``, ``kv_indptr``, ``kv_indices``, ``kv_lens`` and more."""
        qo_indptr, kv_indptr, _, kv_lens = arguments[:4]
        host = [value.to("cpu") for value in (qo_indptr, kv_indptr, kv_lens)]
        self.begin_forward(*arguments, *host, **options)


def trtllm() -> tuple[Any, Any]:
    """The TRT-LLM MLA backend's module, and the one that it inherits from."""
    parent = flashinfer_mla()
    module: Any = import_module(f"{_ATTENTION}.trtllm_mla_backend")
    module._jit_fixup_module = lambda *_: None  # CUDA, compiled at first use
    module._multi_ctas_kv_counter_bytes = lambda *_: 0
    module.can_use_set_mla_kv_concat_q = lambda *_, **__: False
    module.DEFAULT_WORKSPACE_SIZE_MB = 0  # the kernel's scratch, 128 MB
    return module, parent


def hybrid() -> Any:
    """The hybrid backend's module; with it 0.5.15 imports kernels that CUTLASS's wheel compiles."""
    sys.meta_path.insert(0, StandIns(("sglang.jit_kernel.dsa.cutedsl_paged_mqa_logits",)))
    return import_module(f"{_ATTENTION}.hybrid_attn_backend")


def flash_mla() -> tuple[Any, Any]:
    """The FlashMLA backend's module, and the one that it inherits from."""
    sys.meta_path.insert(0, StandIns(("flash_mla",)))
    return import_module(f"{_ATTENTION}.flashmla_backend"), flashinfer_mla()


class Counted:
    """A Triton kernel that counts its launches."""

    def __init__(self, kernel: Any) -> None:
        """Launch `kernel`."""
        self.kernel = kernel
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        """Count a launch."""
        self.grids.append(grid)
        launch: Callable[..., Any] = self.kernel[grid]
        return launch
