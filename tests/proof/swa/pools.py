"""Stock's own configurator of KV pools, fed with a stand-in for the runner around it.

The factory, the configurators and their arithmetic are the installed sglang's. A stand-in takes
the place of the model's configuration and of the process's arguments and ranks.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import torch

from sglang_perf_patches.verify.stock import NoneByDefault, replaced

MODULE = "sglang.srt.model_executor.pool_configurator"
GROUPS = ("schedule", "memory", "disagg", "spec", "parallel")

SETTINGS = {
    "max_running_requests": 64,
    "swa_full_tokens_ratio": 0.8,
    "chunked_prefill_size": 8192,
    "disaggregation_mode": "null",
    "disaggregation_decode_extra_slots": 0,
    "pp_size": 1,
    "attn_tp_size": 1,
    "page_size": 1,
    "kv_cache_dtype": "auto",
}
"""Arguments of a server; each other one is None, or off."""


def pools(
    available: int, *, window: int, page_size: int, full: int, windowed: int, **changed: Any
) -> tuple[Any, Any]:
    """What the release's factory and configurator make of so many bytes for KV; the configurator.

    `full` and `windowed` count layers, and `changed` are arguments other than `SETTINGS`.
    """
    arguments = NoneByDefault(**{**SETTINGS, "page_size": page_size, **changed})
    modules = [importlib.import_module(name) for name in (MODULE, "sglang.srt.runtime_context")]
    stand_ins: dict[str, Any] = {f"get_{group}": lambda: arguments for group in GROUPS}
    with replaced(modules, stand_ins | {"get_attention_tp_size": lambda: 1}):
        own = runner(arguments, window, page_size, full, windowed)
        configurator = modules[0].create_memory_pool_configurator(own)
        return configurator.calculate_pool_sizes(available, page_size), configurator


def sizes(config: Any) -> tuple[int, int]:
    return int(config.full_max_total_num_tokens), int(config.swa_max_total_num_tokens)


def cells(configurator: Any) -> tuple[float, float]:
    """Bytes of a token in the full pool and in the sliding-window pool, over all layers."""
    a_token = configurator._full_per_token, configurator._swa_per_token
    return (a_token[0] * configurator._full_layers_num, a_token[1] * configurator._swa_layers_num)


def runner(arguments: Any, window: int, page_size: int, full: int, windowed: int) -> Any:
    """In the place of a ``KVCacheConfigurator``: what is read of it."""
    layers = list(range(full + windowed))
    model = SimpleNamespace(
        full_attention_layer_ids=layers[:full],
        swa_attention_layer_ids=layers[full:],
        head_dim=64,
        v_head_dim=64,
        swa_head_dim=64,
        swa_v_head_dim=64,
        attention_arch=None,
        hf_config=SimpleNamespace(architectures=["GptOssForCausalLM"]),
        hf_text_config=SimpleNamespace(),
        get_num_kv_heads=lambda _: 8,
        get_swa_num_kv_heads=lambda _: 8,
    )
    others = ("is_eagle", "is_standalone", "is_dflash", "is_dflash_family")
    algorithm = SimpleNamespace(is_none=lambda: True, **dict.fromkeys(others, lambda: False))
    return SimpleNamespace(
        # Only the user's settings; the groups hold the values derived from them.
        server_args=NoneByDefault(pp_size=arguments.pp_size),
        model_config=model,
        layer_info=model,
        kv_cache_dtype=torch.bfloat16,
        kv_cache_dtype_str="auto",
        sliding_window_size=window,
        page_size=page_size,
        is_hybrid_swa=True,
        is_draft_worker=False,
        spec_algorithm=algorithm,
        spec_aux_config=SimpleNamespace(eagle_draft_num_layers=None),
        attn_dp_size=1,
        dflash_draft_cell_size_per_token=None,
        fused_entry_bytes=lambda _: None,
    )
