"""How a model's activations are quantised."""

from __future__ import annotations

from typing import Any


def one_scale(model_config: Any) -> bool:
    """Whether a model's activations may be quantised with one scale over all rows of a batch.

    Such a scale depends on the rows that only pad a replayed graph, so nothing that changes what
    they hold gives the same values. Only unquantised models and FP8 with a scale for each block of
    a row are known to have none.
    """
    if not getattr(model_config, "quantization", None):
        return False
    config = getattr(model_config.hf_config, "quantization_config", None)
    blocks = config if isinstance(config, dict) else vars(config) if config is not None else {}
    return not blocks.get("weight_block_size")
