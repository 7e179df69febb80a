"""Configurations of small models of each kind, as releases read them. None has weights."""

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


def _model(architecture: str, kind: str, *parts: dict[str, Any]) -> dict[str, Any]:
    whole = {"architectures": [architecture], "model_type": kind, **TEXT}
    for part in parts:
        whole |= part
    return whole


_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
_EVERY_OTHER_WINDOW = {"layer_types": ["sliding_attention", "full_attention"] * 2}
MODELS: dict[str, dict[str, Any]] = {
    "plain": _model("Qwen3ForCausalLM", "qwen3"),
    "next": _model(
        *("Qwen3NextForCausalLM", "qwen3_next", STATES, _EXPERTS, {"num_experts": 8}),
        {"shared_expert_intermediate_size": 64, "decoder_sparse_step": 1, "norm_topk_prob": True},
    ),
    "windows": _model(
        *("GptOssForCausalLM", "gpt_oss", _EVERY_OTHER_WINDOW, {"sliding_window": 128}),
        {"num_local_experts": 8, "num_experts_per_tok": 2},
        {"quantization_config": {"quant_method": "mxfp4"}},
    ),
    "falcon": _model(
        *("FalconH1ForCausalLM", "falcon_h1", {"mamba_d_ssm": 256, "mamba_n_heads": 8}),
        {"mamba_d_head": 32, "mamba_n_groups": 1, "mamba_d_state": 32},
    ),
    "gemma": _model(
        "Gemma3ForCausalLM", "gemma3_text", _EVERY_OTHER_WINDOW, {"sliding_window": 512}
    ),
    "latent": _model("DeepseekV3ForCausalLM", "deepseek_v3", LATENT),
    "sparse": _model("DeepseekV32ForCausalLM", "deepseek_v32", LATENT, INDEXER),
    "glm": _model("GlmMoeDsaForCausalLM", "deepseek_v32", LATENT, INDEXER),
    "quantised": _model(
        "Qwen3ForCausalLM", "qwen3", {"quantization_config": {"group_size": 64, "bits": 6}}
    ),
    "ling": _model(
        *("BailingMoeV2_5ForCausalLM", "bailing_hybrid", LATENT, {"layer_group_size": 2}),
        {"num_experts": 8, "num_shared_experts": 1, "moe_shared_expert_intermediate_size": 64},
        {"group_norm_size": 1},
    ),
}


def write(folder: Path, name: str) -> Path:
    """The folder of a model's configuration, in a folder."""
    place = folder / name
    place.mkdir(exist_ok=True)
    config = {"torch_dtype": "bfloat16", **MODELS[name]}
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return place
