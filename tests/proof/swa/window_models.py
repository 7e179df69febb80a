"""Small models of each architecture that `swa.window-pool` serves, by their configurations."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

WINDOW = 32
WORDS = 128
_COMMON: dict[str, Any] = {
    "torch_dtype": "float32",
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "sliding_window": WINDOW,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_KINDS = {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2}
GEMMA_3 = {
    **_COMMON,
    **_KINDS,
    "model_type": "gemma3_text",
    "num_hidden_layers": 6,
    "query_pre_attn_scalar": 64,
    "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0,
    "hidden_activation": "gelu_pytorch_tanh",
}
MODELS: dict[str, dict[str, Any]] = {
    "gemma-3": {**GEMMA_3, "architectures": ["Gemma3ForCausalLM"]},
    "gemma-3-with-images": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "torch_dtype": "float32",
        "text_config": GEMMA_3,
        "vision_config": {
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "image_size": 28,
            "patch_size": 14,
            "model_type": "siglip_vision_model",
        },
        "mm_tokens_per_image": 4,
        "image_token_index": 5,
        "boi_token_index": 6,
        "eoi_token_index": 7,
    },
    "gemma-2": {
        **_COMMON,
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "query_pre_attn_scalar": 64,
        "rope_theta": 10000.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_act": "gelu_pytorch_tanh",
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": None,  # its kernel needs what Triton's interpreter has not
    },
    "exaone-4": {
        **_COMMON,
        "architectures": ["Exaone4ForCausalLM"],
        "model_type": "exaone4",
        "hidden_size": 256,
        "hidden_act": "silu",
        "rope_theta": 1e6,
        "sliding_window_pattern": "LLLG",
        "layer_types": [*["sliding_attention"] * 3, "full_attention"],
    },
    "olmo-3": {
        **_COMMON,
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "hidden_act": "silu",
        "rope_theta": 5e5,
        "hidden_size": 256,
        "tie_word_embeddings": False,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "llama": {
        **{name: value for name, value in _COMMON.items() if name != "sliding_window"},
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rope_theta": 10000.0,
    },
}
"""By a name of ours; the last one has no windows."""


def write(folder: Path, name: str, **changes: Any) -> str:
    """Put a model where a server reads it; the folder's path, one for each configuration."""
    place = folder / f"{name}-{zlib.crc32(repr(changes).encode()):08x}"  # stock caches by path
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps({**MODELS[name], **changes}), encoding="utf-8")
    return str(place)
