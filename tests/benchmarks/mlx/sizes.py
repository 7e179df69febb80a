"""Sizes of the models that the scripts give random weights."""

from __future__ import annotations

from typing import Any

# Of 0.8B and 2B alike.
_QWEN35: dict[str, Any] = {
    "num_hidden_layers": 24,
    "full_attention_interval": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "rope_theta": 10_000_000.0,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "mlp_only_layers": list(range(24)),
    "tie_word_embeddings": True,
}

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
    "hybrid-0.8b": {
        "vocab_size": 248_320,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        **_QWEN35,
    },
    "hybrid-2b": {
        "vocab_size": 248_320,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        **_QWEN35,
    },
}
"""Qwen3-0.6B; and Qwen3-Next's layers, without experts, with the dimensions of Qwen3.5-0.8B and
2B."""
