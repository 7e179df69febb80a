"""Configurations of small models of each kind, as releases read them. None has weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEXT = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 32768,
}
STATES = {
    "full_attention_interval": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_value_head_dim": 32,
}
LATENT: dict[str, Any] = {
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
}
LATENT |= {"v_head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 2}
LATENT |= {"moe_intermediate_size": 64, "first_k_dense_replace": 1, "n_shared_experts": 1}
LATENT |= {"n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "norm_topk_prob": True}
LATENT |= {"routed_scaling_factor": 1.0, "scoring_func": "sigmoid", "moe_layer_freq": 1}
INDEXER = {"index_topk": 64, "index_n_heads": 4, "index_head_dim": 32}
MODELS: dict[str, dict[str, Any]] = {
    "plain": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **TEXT},
    "next": {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        **TEXT,
        **STATES,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    },
    "windows": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        **TEXT,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 128,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "quantization_config": {"quant_method": "mxfp4"},
    },
    "falcon": {
        "architectures": ["FalconH1ForCausalLM"],
        "model_type": "falcon_h1",
        **TEXT,
        "mamba_d_ssm": 256,
        "mamba_n_heads": 8,
        "mamba_d_head": 32,
        "mamba_n_groups": 1,
        "mamba_d_state": 32,
    },
    "gemma": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        **TEXT,
        "sliding_window": 512,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "latent": {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    | TEXT
    | LATENT,
    "sparse": {
        "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32",
        **TEXT,
        **LATENT,
        **INDEXER,
    },
    "glm": {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "deepseek_v32",
        **TEXT,
        **LATENT,
        **INDEXER,
    },
    "quantised": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **TEXT,
        "quantization_config": {"group_size": 64, "bits": 6},
    },
    "ling": {
        "architectures": ["BailingMoeV2_5ForCausalLM"],
        "model_type": "bailing_hybrid",
        **TEXT,
        **LATENT,
        "layer_group_size": 2,
        "num_experts": 8,
        "num_shared_experts": 1,
        "moe_shared_expert_intermediate_size": 64,
        "group_norm_size": 1,
    },
}


def write(folder: Path, name: str) -> Path:
    """The folder of a model's configuration, in a folder."""
    place = folder / name
    place.mkdir(exist_ok=True)
    config = {"torch_dtype": "bfloat16", **MODELS[name]}
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return place
