"""Under MLX no model has the strategy that MLX lacks; without MLX the answer is stock's."""

from __future__ import annotations

import importlib
import os
from types import SimpleNamespace
from unittest import mock

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import require
from tests.proof.mlx.hybrid_cache import on_mlx

PATCH = "mlx.hybrid-defaults"


def answers(_: Inputs) -> int:
    """What the release answers for Qwen3-Next."""
    module = importlib.import_module("sglang.srt.arg_groups.overrides")
    supports = module.supports_mamba_cache_extra_buffer
    view, model = SimpleNamespace(linear_attn_backend="triton"), "Qwen3NextForCausalLM"
    takes_config = "hf_config" in supports.__code__.co_varnames
    asked = SimpleNamespace(architectures=[model]) if takes_config else model
    require(supports(view, asked), "stock does not support it either")
    for name in ("hardware_backend.mlx.tp_worker", "model_executor.model_runner"):
        importlib.import_module(f"sglang.srt.{name}")  # what mlx.hybrid-cache changes
    with on_mlx(PATCH, beside=("mlx.hybrid-cache",)):
        require(not supports(view, asked), "under MLX it is supported")
        with mock.patch.dict(os.environ, {"SGLANG_USE_MLX": "0"}):
            require(supports(view, asked), "without MLX it is not stock's answer")
    return 2


CHECKS = {"answers": answers}
