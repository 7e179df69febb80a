"""With which features of a server the mlx patches were proven.

MLX's backend is one process without CUDA graphs. What its runner was never played with is gated.
"""


def _played(*features: str) -> dict[str, str]:
    """Features that are on in real servers, whose replies are stock's."""
    return dict.fromkeys(features, "tests/server/test_mlx_features.py")


# Prompts whole and in chunks, steps that are read before the next one is built.
ANY = _played("no-cuda-graphs", "whole-prefills", "no-overlap")
WITHOUT_CACHE = _played("no-radix-cache")
SAMPLING = _played("mlx-sampling")
# The scheduler's own, which chooses batches; MLX's pool keeps the model's type.
UNREAD = _played("priorities", "other-retraction", "forward-metrics", "quantised-kv")
_OTHERS = _played(
    "data-parallel",  # each replica is a scheduler of its own
    "quantised-weights",
    "multimodal",  # MLX's runner reads tokens only; stock ignores what an image shows
)
WITH_CACHE = ANY | SAMPLING | UNREAD | _OTHERS
PREFILL_AND_DECODE = WITH_CACHE | WITHOUT_CACHE
HYBRIDS = PREFILL_AND_DECODE | _played("mixed-chunks")
