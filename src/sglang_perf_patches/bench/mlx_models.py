"""The models that ``bench mlx`` measures with: sizes, without weights."""

from __future__ import annotations

from typing import Any

MODELS: dict[str, dict[str, Any]] = {
    "0.6b": {
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
    },
    "8b-4bit": {
        "quantized": True,
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_theta": 1_000_000.0,
    },
    "quarter": {
        "vocab_size": 9_496,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
    },
    "small": {
        "vocab_size": 512,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
    "hybrid": {"kind": "qwen3_next", "num_hidden_layers": 8, "full_attention_interval": 4},
    "window": {
        "kind": "gpt_oss",
        "num_hidden_layers": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 4,
        "sliding_window": 128,
    },
    "qwen3-next": {
        "kind": "qwen3_next",
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "num_hidden_layers": 12,
        "full_attention_interval": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "rope_theta": 10_000_000.0,
        "linear_num_value_heads": 32,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "num_experts": 32,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    "gpt-oss": {
        "kind": "gpt_oss",
        "vocab_size": 201_088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 12,
        "layer_types": ["sliding_attention", "full_attention"] * 6,
        "sliding_window": 128,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 8,
        "rope_theta": 150_000.0,
    },
}
"""The models, in order.

- Qwen3-0.6B, and Qwen3-8B in 4 bits.
- Qwen3 with the proportions of body and head of the 0.6B model, and Qwen3 for a CPU.
- A small model with Qwen3-Next's layers, three of four recurrent.
- A small model with the layers of gpt-oss, every other one with a sliding window.
- Qwen3-Next-80B-A3B with 12 of its 48 layers and 32 of its 512 experts.
- gpt-oss-20b with 12 of its 24 layers and 8 of its 32 experts.
"""
