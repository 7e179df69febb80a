"""With which features of a server the mlx patches were proven.

MLX's backend is one process without CUDA graphs. What its runner was never played with is gated.
"""

from collections.abc import Iterable


def _played(features: Iterable[str]) -> dict[str, str]:
    """Features that are on in real servers, whose replies are stock's."""
    return dict.fromkeys(features, "tests/server/test_mlx_features.py")


ANY = _played(
    # No MLX server has CUDA graphs. Prompts whole and in chunks, steps that are read before the
    # next one is built.
    ("no-cuda-graphs", "whole-prefills", "no-overlap")
)
WITHOUT_CACHE = _played(("no-radix-cache",))
SAMPLING = _played(("mlx-sampling",))
# Each replica is a scheduler of its own.
REPLICAS = _played(("data-parallel",))
# The scheduler's own, which chooses batches; MLX's pool keeps the model's type.
UNREAD = _played(("priorities", "other-retraction", "forward-metrics", "quantised-kv"))
QUANTISED = _played(("quantised-weights",))
# Qwen3.5 with text and images. MLX's runner reads tokens only; stock ignores what an image shows.
IMAGES = _played(("multimodal",))
MIXED = _played(("mixed-chunks",))
WITH_CACHE = ANY | SAMPLING | REPLICAS | UNREAD | QUANTISED | IMAGES
PREFILL_AND_DECODE = WITH_CACHE | WITHOUT_CACHE
HYBRIDS = PREFILL_AND_DECODE | MIXED
