"""Creates models with random weights: small ones for each kind of layer, and larger ones.

Stock's runner uses them instead of a model loaded from a folder.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

RUNNER = "sglang.srt.hardware_backend.mlx.model_runner"
WINDOW = 16
LAYERS = 4

_COMMON: dict[str, Any] = {
    "vocab_size": 128,
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
    "qwen3_next": {
        "model_type": "qwen3_next",
        "num_experts": 4,
        "num_experts_per_tok": 2,
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


@dataclass(frozen=True)
class Model:
    """A model, and a folder that represents it."""

    folder: Path  # has its ``config.json``, which some releases read
    config: Mapping[str, Any]  # the content of that
    model: Any  # mlx-lm's module
    made_as: str  # tells it from models with other weights, in any process


@contextmanager
def model(name: str, dtype: str, *, quantized: bool = False, **sizes: Any) -> Iterator[Model]:
    """A model of `CONFIGS` with changes to its configuration; always the same weights.

    Some releases keep the KV of one that is quantized to 4 bits in a pool of another dtype.
    """
    config = _COMMON | CONFIGS[name] | sizes
    model_class, arguments = import_module("mlx_lm.utils")._get_classes(config)
    module = model_class(arguments.from_dict(config))
    mx.random.seed(5)
    weights = [
        (path, _random(path, value).astype(getattr(mx, dtype)))
        for path, value in tree_flatten(module.parameters())
    ]
    module.update(tree_unflatten(weights))
    if quantized:
        nn.quantize(module, group_size=32, bits=4)
    mx.eval(module.parameters())
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        made_as = json.dumps([config, dtype, quantized], sort_keys=True)
        yield Model(Path(folder), config, module, made_as)


def runner(model: Model, **options: Any) -> Any:
    """A stock ``MlxModelRunner`` over a model."""
    stock: Any = import_module(RUNNER)

    def loaded(_path: str, *, return_config: bool = False, **_: Any) -> tuple[Any, ...]:
        return (model.model, None, dict(model.config)) if return_config else (model.model, None)

    with mock.patch.object(stock, "mlx_lm_load", loaded):
        return stock.MlxModelRunner(str(model.folder), **options)


def _random(path: str, like: mx.array) -> mx.array:
    """Weights scaled by fan-in, so that logits are well spread and no value overflows."""
    if "norm" in path:
        return mx.ones(like.shape)
    scale = math.sqrt(like.shape[-1]) if like.ndim > 1 else 4.0
    return mx.random.normal(like.shape) / scale
