"""Models of dummy weights, by the dimensions that they have: the one table of them.

`SHAPES` has each model's configuration, the arguments with which its Engine is booted unless a run
says otherwise, and its draft where it has one. `write` puts the configurations where an Engine
reads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from families import (
    COMMON,
    DEEPSEEK,
    EAGLE,
    GDN,
    GEMMA_3,
    GPT_OSS,
    HYBRID,
    LLAMA,
    LLAMA_8B,
    LLAMA_DRAFT,
    NEMOTRON,
    TRACKED,
    V2_LITE,
)

EVERYWHERE: dict[str, Any] = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "random_seed": 1,
    "log_level": "info",
}
"""What every Engine here is given."""


@dataclass(frozen=True)
class Shape:
    """One model."""

    config: Mapping[str, Any]  # its ``config.json``
    options: Mapping[str, Any] = field(default_factory=dict)  # of its Engine, by older names
    # What its draft's configuration has of its own, or all of it if it has a ``text_config``.
    draft: Mapping[str, Any] | None = None


def _gemma_4(target: Mapping[str, Any], assistant: Mapping[str, Any]) -> Shape:
    """A text model and its assistant of four layers, which have the target's heads of KV."""
    text: dict[str, Any] = {
        **COMMON,
        "model_type": "gemma4_text",
        "vocab_size": 262144,
        "head_dim": 256,
        "global_head_dim": 512,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "final_logit_softcapping": 30.0,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 262144,
    }
    heads = ("num_key_value_heads", "num_global_key_value_heads", "attention_k_eq_v")
    small = {
        **text,
        **{name: target[name] for name in (*heads, "sliding_window") if name in target},
        "vocab_size_per_layer_input": 0,
        "num_hidden_layers": 4,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"],
        **assistant,
    }
    whole = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "text_config": {**text, **target},
        "vision_config": {"model_type": "gemma4_vision"},  # stock makes it in any case
    }
    options = {
        "enable_multimodal": False,
        "speculative_algorithm": "NEXTN",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    }
    draft = {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": target["hidden_size"],
        "text_config": small,
    }
    return Shape(whole, options, draft)


SHAPES: dict[str, Shape] = {
    "llama": Shape(LLAMA, EAGLE, LLAMA_DRAFT),
    # Llama-3.1-8B's, with a draft of one layer.
    "llama-8b": Shape(LLAMA_8B, EAGLE, LLAMA_DRAFT),
    # A small DeepSeek-V3 with its own MTP layer as the draft.
    "deepseek": Shape(DEEPSEEK, EAGLE),
    # DeepSeek-V2-Lite's dimensions in DeepSeek-V3's architecture, which has an MTP layer.
    "v2-lite-mtp": Shape(V2_LITE, EAGLE),
    # Qwen3-Next's layers, 24 of them, with few and small experts.
    "gdn-24": Shape(
        {
            **GDN,
            "vocab_size": 32000,
            "intermediate_size": 2048,
            "num_hidden_layers": 24,
            "num_experts": 8,
            "num_experts_per_tok": 2,
        },
        TRACKED,
    ),
    # Qwen3.5-35B-A3B's dimensions in Qwen3-Next's architecture.
    "qwen-35b-a3b": Shape(
        {
            **GDN,
            "vocab_size": 151936,
            "intermediate_size": 5120,
            "num_hidden_layers": 40,
            "num_experts": 256,
            "num_experts_per_tok": 8,
        }
    ),
    "gpt-oss-20b": Shape(
        {
            **GPT_OSS,
            "vocab_size": 201088,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_hidden_layers": 24,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "quantization_config": {"quant_method": "mxfp4"},
        }
    ),
    "gemma-3-12b": Shape(
        {
            **GEMMA_3,
            "hidden_size": 3840,
            "intermediate_size": 15360,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
        }
    ),
    "gemma-3-4b": Shape(
        {
            **GEMMA_3,
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
        }
    ),
    # Two of Gemma 4's targets with their assistants, which read the targets' KV.
    "gemma-4-26b-a4b": _gemma_4(
        {
            "hidden_size": 2816,
            "intermediate_size": 2112,
            "num_hidden_layers": 30,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "num_global_key_value_heads": 2,
            "attention_k_eq_v": True,
            "sliding_window": 1024,
            "enable_moe_block": True,
            "num_experts": 128,
            "top_k_experts": 8,
            "moe_intermediate_size": 704,
        },
        {"hidden_size": 1024, "intermediate_size": 8192, "num_attention_heads": 16},
    ),
    "gemma-4-e4b": _gemma_4(
        {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 42,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "sliding_window": 512,
            "num_kv_shared_layers": 18,
            "hidden_size_per_layer_input": 256,
        },
        {"hidden_size": 256, "intermediate_size": 2048, "num_attention_heads": 4},
    ),
    # Llama-3.1-8B's dimensions, with stock's own choices.
    "llama-8b-plain": Shape(LLAMA_8B),
    "gpt-oss-small": Shape(
        {
            **GPT_OSS,
            "vocab_size": 32000,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 140000,
            "hidden_size": 1024,
            "intermediate_size": 1024,
            "num_hidden_layers": 8,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
        {
            "attention_backend": "triton",
            "moe_runner_backend": "triton",
            "disable_piecewise_cuda_graph": True,
            "cuda_graph_backend_prefill": "disabled",
        },
    ),
    # NVIDIA-Nemotron-3-Nano-30B-A3B: 23 Mamba2, 23 MoE and 6 attention layers.
    "nemotron-30b-a3b": Shape(
        {
            **NEMOTRON,
            "hidden_size": 2688,
            "intermediate_size": 1856,
            "hybrid_override_pattern": "MEMEM*E" + "MEMEM*E" * 4 + "MEMEMEM*E" + "MEMEMEME",
            "num_key_value_heads": 2,
            "mamba_num_heads": 64,
            "mamba_head_dim": 64,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1856,
            "moe_shared_expert_intermediate_size": 3712,
            "routed_scaling_factor": 2.5,
            "n_group": 1,
            "topk_group": 1,
        },
        HYBRID,
    ),
    # The sizes of a Ling mini (16B, 1.4B active) in the architecture of Ling 2.5: 16 layers of
    # lightning attention (seg_la, the default) and 4 of MLA. The router is a plain softmax, which
    # needs no kernel of FlashInfer's.
    "ling-16b-a1b": Shape(
        {
            **COMMON,
            "architectures": ["BailingMoeV2_5ForCausalLM"],
            "model_type": "bailing_hybrid",
            "vocab_size": 157184,
            "hidden_size": 2048,
            "intermediate_size": 5120,
            "num_hidden_layers": 20,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 256,
            "num_shared_experts": 1,
            "num_experts_per_tok": 8,
            "n_group": 0,
            "topk_group": 0,
            "moe_intermediate_size": 512,
            "first_k_dense_replace": 1,
            "layer_group_size": 5,
            "group_norm_size": 4,
            "use_qk_norm": True,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "partial_rotary_factor": 0.5,
            "score_function": "softmax",
            "scoring_func": "softmax",
            "topk_method": "greedy",
            "moe_router_enable_expert_bias": False,
            "router_dtype": "fp32",
            "routed_scaling_factor": 2.5,
            "rope_theta": 600000.0,
        },
        HYBRID,
    ),
}


def whole(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same with the types of its layers repeated, or cut, to the number of layers."""
    if "layer_types" not in config:
        return dict(config)
    layers = config["num_hidden_layers"]
    return {**config, "layer_types": (list(config["layer_types"]) * layers)[:layers]}


def write(name: str, folder: Path, changes: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Put one of `SHAPES`, or a folder's model, where an Engine reads it; arguments, vocabulary."""
    if name not in SHAPES:
        if not (Path(name) / "config.json").is_file():
            raise ValueError(f"no shape or model {name!r}: the shapes are {', '.join(SHAPES)}")
        config = json.loads((Path(name) / "config.json").read_text(encoding="utf-8"))
        return {"model_path": name, "load_format": "auto"}, int(config["vocab_size"])
    shape = SHAPES[name]
    config = {**whole({**shape.config, **changes}), **changes}
    options = {**shape.options, "model_path": _put(folder / name, config)}
    if shape.draft is not None:
        own = {} if "text_config" in shape.draft else config
        draft = _put(folder / f"{name}-draft", {**own, **shape.draft})
        options["speculative_draft_model_path"] = draft
    return options, int(config.get("text_config", config)["vocab_size"])


def _put(folder: Path, config: Mapping[str, Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)
