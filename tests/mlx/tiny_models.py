"""Models small enough for a CPU, with random weights, one for each kind of layer stock decodes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import _get_classes
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

VOCABULARY = 128
WINDOW = 16
LAYERS = 4

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 16_384,
    "tie_word_embeddings": False,
}

_MIXTURE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}

CONFIGS: dict[str, dict[str, Any]] = {
    # Full attention in every layer.
    "qwen3": {"model_type": "qwen3"},
    # Sinks, and a sliding window in every other layer.
    "gpt_oss": {
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": WINDOW,
        "rope_scaling": None,
        "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
    },
    # A recurrent state in every other layer, and a gate on the queries.
    "qwen3_next": _MIXTURE
    | {
        "model_type": "qwen3_next",
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 32,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "partial_rotary_factor": 0.5,
        "full_attention_interval": 2,
    },
}


def write(folder: Path, name: str, dtype: str) -> None:
    """Write config, weights and tokenizer; the same bytes every time."""
    config = _COMMON | CONFIGS[name]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    model_class, arguments = _get_classes(config)
    model = model_class(arguments.from_dict(config))
    mx.random.seed(5)
    weights = [
        (path, _random(path, value).astype(getattr(mx, dtype)))
        for path, value in tree_flatten(model.parameters())
    ]
    model.update(tree_unflatten(weights))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(weights), {"format": "mlx"})
    words = WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0")
    Tokenizer(words).save(str(folder / "tokenizer.json"))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w1"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))


def _random(path: str, like: mx.array) -> mx.array:
    """Scaled by fan-in, so that logits are well spread and no value overflows."""
    if "norm" in path:
        return mx.ones(like.shape)
    scale = math.sqrt(like.shape[-1]) if like.ndim > 1 else 4.0
    return mx.random.normal(like.shape) / scale
