"""What the servers of `beside.py` and of ``examples/mlx_on_a_mac.sh`` serve: random weights.

`bench server` of the command measures a server of them, stock and patched, in turns of boots.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from linux_mlx import tiny_model

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

_MODELS: dict[str, dict[str, Any]] = {
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
    "hybrid-2b": {"vocab_size": 248_320, "hidden_size": 2048, "intermediate_size": 6144, **_QWEN35},
}
"""Qwen3-0.6B; and Qwen3-Next's layers, without experts, with the dimensions of Qwen3.5-0.8B and
2B."""

_CHAT = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def write(folder: str, shape: str) -> None:
    """Write config, weights and tokenizer; runs where mlx and ``tests/harness`` are.

    No reply ends early: the end's logit is 0, which is never the largest. The shapes: ``tiny``
    (Qwen3 for a CPU), ``window`` (gpt-oss' layers of that size), ``0.6b`` (Qwen3-0.6B) or
    ``0.6b-4bit``; with gated delta nets ``hybrid`` (for a CPU), ``hybrid-0.8b`` or ``hybrid-2b``
    (Qwen3.5's dimensions).
    """
    import mlx.core as mx

    where = Path(folder)
    path = str(where / "model.safetensors")
    end = tiny_model.CONFIG["eos_token_id"]
    if shape in ("tiny", "window", "hybrid"):
        tiny_model.write(where, tiny_model.HYBRID if shape == "hybrid" else tiny_model.CONFIG)
        weights = _with_windows(where) if shape == "window" else mx.load(path)
        weights["lm_head.weight"][end] = 0
    else:
        is_hybrid = shape.startswith("hybrid-")
        base, _, bits = (shape, "", "") if is_hybrid else shape.partition("-")
        config = tiny_model.HYBRID if is_hybrid else tiny_model.CONFIG
        config = config | _MODELS[base] | {"torch_dtype": "bfloat16"}
        if bits:
            config |= {"quantization": {"bits": 4, "group_size": 64}}
        tiny_model.write(where, config)
        weights = mx.load(path)
        weights.pop("lm_head.weight", None)  # tied
        weights["model.embed_tokens.weight"][end] = 0
        weights = {name: value.astype(mx.bfloat16) for name, value in weights.items()}
        if bits:
            weights = _in_4_bits(weights)
    mx.eval(weights)
    mx.save_safetensors(path, weights, metadata={"format": "pt"})
    described = json.loads((where / "tokenizer_config.json").read_text())
    described["chat_template"] = _CHAT
    (where / "tokenizer_config.json").write_text(json.dumps(described))


def _with_windows(folder: Path) -> dict[str, Any]:
    """Weights of gpt-oss' layers, every other one with a window of 128, and their config."""
    from mlx.utils import tree_flatten

    from sglang_perf_patches.verify.mlx import models

    tiny = tiny_model.CONFIG
    sizes = {
        name: tiny[name]
        for name in (
            *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
            *("num_key_value_heads", "head_dim"),
        )
    }
    sizes |= {"intermediate_size": tiny["hidden_size"], "sliding_window": 128}
    layers = tiny["num_hidden_layers"]
    sizes |= {"layer_types": ["sliding_attention", "full_attention"] * (layers // 2)}
    with models.model("gpt_oss", "float32", **sizes) as model:
        config = {name: value for name, value in model.config.items() if name != "rope_scaling"}
        config |= {"architectures": ["GptOssForCausalLM"], "torch_dtype": "float32"}
        same = ("bos_token_id", "eos_token_id", "max_position_embeddings", "hidden_act")
        config |= {name: tiny[name] for name in same}
        (folder / "config.json").write_text(json.dumps(config))
        return dict(tree_flatten(model.model.parameters()))


def _in_4_bits(weights: dict[str, Any]) -> dict[str, Any]:
    """The same weights with each matrix as mlx-lm has it in 4 bits."""
    import mlx.core as mx

    quantized = {}
    for name, value in weights.items():
        if value.ndim < 2:
            quantized[name] = value
            continue
        parts = mx.quantize(value, group_size=64, bits=4)
        for part, array in zip(("weight", "scales", "biases"), parts, strict=True):
            quantized[f"{name.removesuffix('weight')}{part}"] = array
    return quantized
