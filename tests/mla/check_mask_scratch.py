"""TRT-LLM MLA builds the same trees with a mask of kilobytes, which stays inside its buffer."""

from __future__ import annotations

from typing import Any

import torch
from check_verify_mask_fill import tree_kernel
from hypothesis import strategies as st
from lent import Wrapper
from liveness import live
from rooms import CONTEXT, furnished, model_runner, server_args
from sglang.srt.layers.attention import flashinfer_mla_backend, trtllm_mla_backend
from sglang.srt.speculative import eagle_utils
from toggling import compare

PATCH = "mla.mask-scratch"
CAPTURED = 4
MODULES = (flashinfer_mla_backend.__name__, trtllm_mla_backend.__name__)

for _name in ("BatchMLAPagedAttentionWrapper", "BatchPrefillWithRaggedKVCacheWrapper"):
    setattr(flashinfer_mla_backend, _name, Wrapper)
trtllm_mla_backend._jit_fixup_module = lambda *_: None  # CUDA, compiled at first use
trtllm_mla_backend._multi_ctas_kv_counter_bytes = lambda *_: 0
trtllm_mla_backend.can_use_set_mla_kv_concat_q = lambda *_, **__: False
trtllm_mla_backend.DEFAULT_WORKSPACE_SIZE_MB = 0
flashinfer_mla_backend.envs.SGLANG_FLASHINFER_WORKSPACE_SIZE.set(0)
eagle_utils.sgl_build_tree_kernel_efficient = tree_kernel

CASES = st.integers(1, 5).flatmap(
    lambda draft: st.fixed_dictionaries(
        {
            "draft": st.just(draft),
            "requests": st.lists(
                st.tuples(
                    st.integers(1, 40),
                    st.tuples(*(st.integers(0, node) for node in range(draft - 1))),
                ),
                min_size=1,
                max_size=CAPTURED + 2,
            ),
            "draft_runner": st.booleans(),
        }
    )
)


def make(draft: int | None, *, skip_prefill: bool = False, draft_runner: bool = False) -> Any:
    """A TRT-LLM MLA backend with its graph state."""
    arguments = server_args(speculative_num_draft_tokens=draft, page_size=32)
    runner = model_runner(arguments, mla=True, is_draft_worker=draft_runner)
    backend = trtllm_mla_backend.TRTLLMMLABackend(runner, skip_prefill=skip_prefill)
    backend.init_cuda_graph_state(CAPTURED, CAPTURED * (draft or 1))
    return backend


def build(case: dict[str, Any]) -> dict[str, Any]:
    """Build trees; all of what a verify reads of them, and the backend's own state."""
    draft, count = case["draft"], len(case["requests"])
    with furnished(server_args(speculative_num_draft_tokens=draft, page_size=32), *MODULES):
        backend = make(draft, draft_runner=case["draft_runner"])
        mask, positions = backend.get_verify_buffers_to_fill_after_draft()
        if mask is None:
            assert case["draft_runner"]
            return {"mask": None}
        guarded = torch.full((mask.numel() + 512,), 7, dtype=torch.uint8)
        room = guarded[: mask.numel()].view(mask.dtype)
        backend.cuda_graph_custom_mask = room
        mask, positions = backend.get_verify_buffers_to_fill_after_draft()
        assert mask is room
        nodes = torch.tensor([parents for _, parents in case["requests"]], dtype=torch.int64)
        made = eagle_utils.build_tree_kernel_efficient(
            torch.arange(count),
            [],
            nodes.reshape(count, draft - 1),
            torch.zeros((count, draft - 1), dtype=torch.int64),
            torch.tensor([length for length, _ in case["requests"]]),
            sum(length for length, _ in case["requests"]),
            2,
            3,
            draft,
            eagle_utils.TreeMaskMode.FULL_MASK,
            mask,
            positions,
        )
        assert bool((guarded[mask.numel() :] == 7).all()), "written past the mask"
        assert backend.num_draft_tokens == draft
        state = {
            name: value
            for name, value in vars(backend).items()
            if isinstance(value, torch.Tensor) and name != "cuda_graph_custom_mask"
        }
        return {"made": list(made[1:]), "state": {k: (v.shape, v.dtype) for k, v in state.items()}}


def run() -> None:
    """Compare; see the size of the mask, and where there is none."""
    compare(PATCH, build, CASES)
    with live(PATCH):
        build(
            {"draft": 3, "requests": [(5, (0, 1))] * (CAPTURED + 2), "draft_runner": False},
        )
    with live(PATCH), furnished(server_args(page_size=32), *MODULES):
        mask, _ = make(4).get_verify_buffers_to_fill_after_draft()
        assert mask.numel() == CAPTURED * 4 * 4
        assert make(None).get_verify_buffers_to_fill_after_draft() == [None, None]
        assert make(4, skip_prefill=True).get_verify_buffers_to_fill_after_draft() == [None, None]
    with furnished(server_args(page_size=32), *MODULES):
        mask, _ = make(4).get_verify_buffers_to_fill_after_draft()
        assert mask.numel() == CAPTURED * 4 * (CONTEXT + 4)
