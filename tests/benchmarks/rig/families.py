"""What models of a family share: their configuration, and the arguments of their Engines.

`shapes.write` repeats ``layer_types`` for all layers.
"""

from __future__ import annotations

from typing import Any

COMMON: dict[str, Any] = {
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
}

EAGLE: dict[str, Any] = {
    "attention_backend": "triton",
    "mem_fraction_static": 0.6,
    "cuda_graph_max_bs": 64,
    "max_running_requests": 64,
    "context_length": 131072,
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
    "disable_piecewise_cuda_graph": True,
    "disable_radix_cache": True,
}
TRACKED: dict[str, Any] = {
    "attention_backend": "triton",
    "mamba_scheduler_strategy": "extra_buffer",
    "page_size": 64,
    "mem_fraction_static": 0.5,
    "chunked_prefill_size": 8192,
    "max_running_requests": 64,
    "cuda_graph_max_bs": 64,
}
HYBRID: dict[str, Any] = {
    "moe_runner_backend": "triton",
    "mem_fraction_static": 0.97,
    "max_running_requests": 64,
    "max_total_tokens": 200_000,
    "cuda_graph_bs": [1, 16, 64],
}

LLAMA: dict[str, Any] = {
    **COMMON,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32,  # so few that some drafts are accepted by chance
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "rope_theta": 10000.0,
}
LLAMA_8B: dict[str, Any] = {
    **LLAMA,
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
LLAMA_DRAFT = {"architectures": ["LlamaForCausalLMEagle"], "num_hidden_layers": 1}
DEEPSEEK: dict[str, Any] = {
    **COMMON,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 32,
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "moe_intermediate_size": 512,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "num_nextn_predict_layers": 1,
}
V2_LITE: dict[str, Any] = {
    **DEEPSEEK,
    "vocab_size": 102400,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "q_lora_rank": None,
    "max_position_embeddings": 163840,
}
GDN: dict[str, Any] = {
    **COMMON,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
    "full_attention_interval": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
}
GEMMA_3: dict[str, Any] = {
    **COMMON,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "vocab_size": 262208,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0,
    "sliding_window": 1024,
    "hidden_activation": "gelu_pytorch_tanh",
    "layer_types": [*["sliding_attention"] * 5, "full_attention"],
    "tie_word_embeddings": True,
}
GPT_OSS: dict[str, Any] = {
    **COMMON,
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "head_dim": 64,
    "attention_bias": True,
    "swiglu_limit": 7.0,
    "initial_context_length": 4096,
    "rope_theta": 150000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"],
    "router_aux_loss_coef": 0.9,
}
NEMOTRON: dict[str, Any] = {
    **COMMON,
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "vocab_size": 131072,
    "num_attention_heads": 32,
    "head_dim": 128,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "chunk_size": 128,
    "mamba_ssm_cache_dtype": "float32",
    "mlp_hidden_act": "relu2",
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 262144,
}
