"""Models small enough for a CPU, with random weights and a tokenizer of whole words.

Run it as a script with an environment's Python, which has mlx: `tiny_model.py FOLDER [KIND]`.
"""

import json
import math
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

_SPECIAL = ("<bos>", "<eos>", "<unk>")
WORDS = tuple(f"w{number}" for number in range(512 - len(_SPECIAL)))
_VOCABULARY = (*_SPECIAL, *WORDS)

_HIDDEN, _INNER, _LAYERS = 128, 256, 8
_HEADS, _KV_HEADS, _HEAD_DIM = 4, 2, 32
_CONTEXT = 8192

_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": len(_VOCABULARY),
    "hidden_size": _HIDDEN,
    "intermediate_size": _INNER,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _KV_HEADS,
    "head_dim": _HEAD_DIM,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "max_position_embeddings": _CONTEXT,
    "attention_bias": False,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 1,
}

# Every other layer is a gated delta net, which has a state in place of KV.
_HYBRID = _CONFIG | {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "partial_rotary_factor": 0.5,
    "num_experts": 0,
    "num_experts_per_tok": 1,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [0, 1, 2, 3],
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}

# Qwen3.5 as it is published: a model that takes images, around the same layers.
_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
IMAGE = tuple(len(_VOCABULARY) + at for at in (0, 2, 1))
_PATCH, _MERGED = 16, 2
_SEES = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
    "text_config": {
        **_HYBRID,
        "model_type": "qwen3_5_text",
        "vocab_size": len(_VOCABULARY) + len(_VISION),
        "mlp_only_layers": [],
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1_000_000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    },
    "vision_config": {
        "model_type": "qwen3_5",
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "in_channels": 3,
        "patch_size": _PATCH,
        "spatial_merge_size": _MERGED,
        "temporal_patch_size": 2,
        "out_hidden_size": _HIDDEN,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [],
    },
    "vision_start_token_id": IMAGE[0],
    "vision_end_token_id": IMAGE[2],
    "image_token_id": IMAGE[1],
    "video_token_id": len(_VOCABULARY) + _VISION.index("<|video_pad|>"),
}

KINDS = ("dense", "hybrid", "qwen3.5")


def write_tiny_model(folder: Path, kind: str = "dense") -> None:
    """Write config, weights and tokenizer; the same bytes every time."""
    folder.mkdir(parents=True, exist_ok=True)
    config, write_weights = {
        "dense": (_CONFIG, _write_weights),
        "hybrid": (_HYBRID, _write_hybrid_weights),
        "qwen3.5": (_SEES, _write_hybrid_weights),
    }[kind]
    (folder / "config.json").write_text(json.dumps(config))
    write_weights(folder / "model.safetensors", config)
    _write_tokenizer(folder, _VISION if config is _SEES else ())
    if config is _SEES:
        _write_processor(folder)


def _write_weights(path: Path, _: dict[str, Any]) -> None:
    """Write weights in float32, scaled by fan-in, so that the best next word has a clear margin.

    Rounding differs with the composition of a batch, but then does not change a reply.
    """
    import mlx.core as mx

    mx.random.seed(7)

    def matrix(rows: int, columns: int) -> mx.array:
        return mx.random.normal((rows, columns)) / math.sqrt(columns)

    weights = {
        "model.embed_tokens.weight": mx.random.normal((len(_VOCABULARY), _HIDDEN)),
        "model.norm.weight": mx.ones(_HIDDEN),
        "lm_head.weight": matrix(len(_VOCABULARY), _HIDDEN),
    }
    for number in range(_LAYERS):
        layer = {
            "input_layernorm": mx.ones(_HIDDEN),
            "self_attn.q_proj": matrix(_HEADS * _HEAD_DIM, _HIDDEN),
            "self_attn.k_proj": matrix(_KV_HEADS * _HEAD_DIM, _HIDDEN),
            "self_attn.v_proj": matrix(_KV_HEADS * _HEAD_DIM, _HIDDEN),
            "self_attn.o_proj": matrix(_HIDDEN, _HEADS * _HEAD_DIM),
            "self_attn.q_norm": mx.ones(_HEAD_DIM),
            "self_attn.k_norm": mx.ones(_HEAD_DIM),
            "post_attention_layernorm": mx.ones(_HIDDEN),
            "mlp.gate_proj": matrix(_INNER, _HIDDEN),
            "mlp.up_proj": matrix(_INNER, _HIDDEN),
            "mlp.down_proj": matrix(_HIDDEN, _INNER),
        }
        weights |= {f"model.layers.{number}.{name}.weight": value for name, value in layer.items()}
    mx.save_safetensors(str(path), weights, metadata={"format": "pt"})


def _write_hybrid_weights(path: Path, config: dict[str, Any]) -> None:
    """The same for a hybrid: mlx-lm's module names its weights."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    family: Any = import_module(f"mlx_lm.models.{config['model_type']}")

    mx.random.seed(7)

    def weight(name: str, like: mx.array) -> mx.array:
        if "norm" in name:
            return mx.ones(like.shape)
        fan_in = 1 if "embed" in name or like.ndim == 1 else math.prod(like.shape[1:])
        return mx.random.normal(like.shape) / math.sqrt(fan_in)

    module = family.Model(family.ModelArgs.from_dict(config))
    weights = {name: weight(name, like) for name, like in tree_flatten(module.parameters())}
    if "vision_config" in config:  # mlx-lm leaves it out
        weights["vision_tower.patch_embed.proj.bias"] = mx.ones(32)
        # No reply has a token of an image: stock would look for the image in the next turn.
        head = "language_model.lm_head.weight"
        weights[head] *= mx.arange(weights[head].shape[0])[:, None] < len(_VOCABULARY)
    mx.save_safetensors(str(path), weights, metadata={"format": "pt"})


def _write_tokenizer(folder: Path, special: Sequence[str]) -> None:
    bos, eos, unknown = _SPECIAL
    vocabulary = {word: number for number, word in enumerate((*_VOCABULARY, *special))}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            | {"id": vocabulary[word], "content": word, "special": True}
            for word in special
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": unknown},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
        "unk_token": unknown,
        "model_max_length": _CONTEXT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described))


def _write_processor(folder: Path) -> None:
    """What makes patches of images."""
    patches = {
        "processor_class": "Qwen3VLProcessor",
        "patch_size": _PATCH,
        "temporal_patch_size": 2,
        "merge_size": _MERGED,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "size": {"shortest_edge": 1024, "longest_edge": 65536},
    }
    for name, kind in (
        ("preprocessor_config", {"image_processor_type": "Qwen2VLImageProcessorFast"}),
        ("video_preprocessor_config", {"video_processor_type": "Qwen3VLVideoProcessor"}),
    ):
        (folder / f"{name}.json").write_text(json.dumps(patches | kind))
    # Stock's warm-up sends a chat with an image.
    shown = "".join(_VISION[at] for at in (0, 2, 1))
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{% for part in message.content %}"
        f" {{{{ part.text if part.type == 'text' else '{shown}' }}}}"
        "{% endfor %}{% endfor %}"
    )


if __name__ == "__main__":
    write_tiny_model(Path(sys.argv[1]), *sys.argv[2:])
