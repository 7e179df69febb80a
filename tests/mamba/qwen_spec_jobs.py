"""What `on_release` plays of the model of `qwen_jobs` with NEXTN and its own draft layer.

Model, draft, workers and schedules are the release's. Stand-ins, besides those of `qwen_server`:
the release's Triton kernels, which it has for another device, build and verify the drafts. Random
weights accept next to nothing, so a switch of the release accepts two tokens a step.
"""

import importlib
import os
from typing import Any
from unittest import mock

os.environ |= {"SGLANG_SIMULATE_ACC_LEN": "2", "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token"}

import qwen_jobs
import torch

# Longer replies: each is of several verifies.
qwen_jobs.ROUNDS = tuple(tuple((ids, 2 * new) for ids, new in asked) for asked in qwen_jobs.ROUNDS)
_KERNELS = "sglang.kernels.ops"
_ASKED = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}


def replies() -> dict[str, Any]:
    """Equal batches, tokens, logits and states: eager, and from tables between verifies."""
    _lend()
    return qwen_jobs.like_eager(**_ASKED)


def _lend() -> None:
    """Let a CPU run the release's Triton kernels of drafts."""
    for name in (f"{_KERNELS}.speculative.spec_tree", "sglang.srt.speculative.eagle_utils"):
        trees: Any = importlib.import_module(name)  # 0.5.22 chooses the kernels in the second
        trees._is_xpu = True
    scatters: Any = importlib.import_module(f"{_KERNELS}.mamba.mamba_state_scatter_triton")
    for name in ("fused_mamba_state_scatter_with_mask", "fused_conv_window_scatter_with_mask"):
        setattr(scatters, name, _anywhere(getattr(scatters, name)))


def _anywhere(scatter: Any) -> Any:
    """A function that refuses tensors of a CPU, without that check."""

    def scattered(*args: Any, **kwargs: Any) -> Any:
        with mock.patch.object(torch.Tensor, "is_xpu", True, create=True):
            return scatter(*args, **kwargs)

    return scattered
