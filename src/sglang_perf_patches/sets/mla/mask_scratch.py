"""mla.mask-scratch: the verify mask that TRT-LLM MLA never reads takes kilobytes.

Upstream: sgl-project/sglang#31527, #32886 and #32920.
"""

from __future__ import annotations

import weakref
from typing import Any

from ...model.patching import Patching
from .situations import VERIFY, Served, refuse_platforms
from .tree_builder import BUFFER, BUILD_TREE, DRAFT, MODE, SEQ_LENS, unfilled

BACKEND = "sglang.srt.layers.attention.trtllm_mla_backend:TRTLLMMLABackend"


def install(patching: Patching) -> None:
    """Allocate the mask for draft x draft cells per request, and build trees of that layout.

    A batch larger than the captured ones gets a mask of its own: the buffer has no room for it.
    """
    import torch

    refuse_platforms(patching)
    ran = patching.ran
    served = Served(patching, *VERIFY)
    qlen_only = patching.module("sglang.srt.speculative.eagle_utils").TreeMaskMode.QLEN_ONLY
    small: list[weakref.ref[Any]] = []  # the last mask from a TRT-LLM backend

    def make_state(inner: Any) -> Any:
        def init_cuda_graph_state(
            self: Any, max_bs: int, max_num_tokens: int, kv_indices_buf: Any = None
        ) -> None:
            draft = self.num_draft_tokens
            if not draft or not served():
                inner(self, max_bs, max_num_tokens, kv_indices_buf)
                return
            ran.seen = True
            # Why this trick: stock allocates the mask in a method that allocates more, but not if
            # this number is 0. Nothing else in the method reads it.
            self.num_draft_tokens = 0
            try:
                inner(self, max_bs, max_num_tokens, kv_indices_buf)
            finally:
                self.num_draft_tokens = draft
            if not self.skip_prefill and not getattr(self, "is_draft_runner", False):
                self.cuda_graph_custom_mask = torch.zeros(
                    max_bs * draft * draft, dtype=torch.bool, device=self.device
                )

        return init_cuda_graph_state

    def make_buffers(inner: Any) -> Any:
        def get_verify_buffers_to_fill_after_draft(self: Any) -> list[Any]:
            mask, positions = inner(self)
            small[:] = [weakref.ref(mask)] if mask is not None and served() else []
            return [mask, positions]

        return get_verify_buffers_to_fill_after_draft

    def make_build(inner: Any) -> Any:
        def build_tree_kernel_efficient(*given: Any, **named: Any) -> Any:
            ours = small[0]() if small else None
            if ours is None or len(given) <= BUFFER or given[BUFFER] is not ours:
                return inner(*given, **named)
            ran.seen = True
            seq_lens, draft = given[SEQ_LENS], given[DRAFT]
            if seq_lens.numel() * draft * draft > ours.numel():
                return inner(*given[:MODE], qlen_only, None, *given[BUFFER + 1 :], **named)
            shown = unfilled(ours)  # the kernel writes every cell
            made = inner(*given[:MODE], qlen_only, shown, *given[BUFFER + 1 :], **named)
            return (ours, *made[1:])

        return build_tree_kernel_efficient

    patching.override(f"{BACKEND}.init_cuda_graph_state", make_state)
    patching.override(f"{BACKEND}.get_verify_buffers_to_fill_after_draft", make_buffers)
    patching.override(BUILD_TREE, make_build)
