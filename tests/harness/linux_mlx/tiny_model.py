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

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": len(_SPECIAL) + len(WORDS),
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "max_position_embeddings": 8192,
    "attention_bias": False,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": _SPECIAL.index("<bos>"),
    "eos_token_id": _SPECIAL.index("<eos>"),
}

# Every other layer is a gated delta net, which has a state in place of KV.
HYBRID = CONFIG | {
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
IMAGE = tuple(CONFIG["vocab_size"] + at for at in (0, 2, 1))
_PATCH, _MERGED = 16, 2
_SEES = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
    "text_config": {
        **HYBRID,
        "model_type": "qwen3_5_text",
        "vocab_size": CONFIG["vocab_size"] + len(_VISION),
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
        "out_hidden_size": CONFIG["hidden_size"],
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [],
    },
    "vision_start_token_id": IMAGE[0],
    "vision_end_token_id": IMAGE[2],
    "image_token_id": IMAGE[1],
    "video_token_id": CONFIG["vocab_size"] + _VISION.index("<|video_pad|>"),
}

# A sliding window in every other layer.
_WINDOWS = CONFIG | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 4,
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}

KINDS = {"dense": CONFIG, "hybrid": HYBRID, "qwen3.5": _SEES, "windows": _WINDOWS}


def write(folder: Path, config: dict[str, Any]) -> None:
    """Write config, weights and tokenizer; the same bytes every time."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    _write_weights(folder / "model.safetensors", config)
    if "vision_config" in config:
        _write_tokenizer(folder, CONFIG["vocab_size"], _VISION)
        _write_processor(folder)
    else:
        _write_tokenizer(folder, config["vocab_size"])


def _write_weights(path: Path, config: dict[str, Any]) -> None:
    """Write weights in float32, scaled by fan-in, so that the best next word has a clear margin.

    Rounding differs with the composition of a batch, but then does not change a reply. mlx-lm's
    module names the weights.
    """
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
        weights[head] *= mx.arange(weights[head].shape[0])[:, None] < CONFIG["vocab_size"]
    mx.save_safetensors(str(path), weights, metadata={"format": "pt"})


def _write_tokenizer(folder: Path, size: int, special: Sequence[str] = ()) -> None:
    bos, eos, unknown = _SPECIAL
    words = (f"w{number}" for number in range(size - len(_SPECIAL)))
    vocabulary = {word: number for number, word in enumerate((*_SPECIAL, *words, *special))}
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
        "model_max_length": CONFIG["max_position_embeddings"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described))


def _write_processor(folder: Path) -> None:
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
    write(Path(sys.argv[1]), KINDS[sys.argv[2] if len(sys.argv) > 2 else "dense"])
