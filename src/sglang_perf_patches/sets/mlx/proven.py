"""With which features of a server the mlx patches were proven, and by which check.

MLX's backend is one process without CUDA graphs. What its runner was never played with is gated.
"""

_CASE = "tests/mlx/test_cases.py"

ANY = {
    # No MLX server has CUDA graphs; those of the checks run on a CPU.
    "cpu": _CASE,
    "no-cuda-graphs": _CASE,
    # Prompts whole and in chunks, steps that are read before the next one is built.
    "whole-prefills": _CASE,
    "no-overlap": _CASE,
}
WITHOUT_CACHE = {"no-radix-cache": _CASE}
SAMPLING = {"mlx-sampling": _CASE}
# Each replica is a scheduler of its own.
REPLICAS = {"data-parallel": "tests/server/test_live_proof.py"}
# The scheduler's own, which chooses batches; MLX's pool keeps the model's type.
UNREAD = dict.fromkeys(
    ("priorities", "other-retraction", "forward-metrics", "quantised-kv"),
    "tests/mlx/test_features.py: test_mlx_reads_no_argument_of_theirs",
)
_HYBRID = "tests/server/test_mlx_hybrid.py"
# Qwen3.5 with text and images. MLX's runner reads tokens only; stock ignores what an image shows.
IMAGES = {"multimodal": _HYBRID}
PREFILL_AND_DECODE = (
    ANY | WITHOUT_CACHE | SAMPLING | REPLICAS | UNREAD | IMAGES | {"quantised-weights": _CASE}
)
MIXED = {"mixed-chunks": _HYBRID}
HYBRIDS = dict.fromkeys((*ANY, *SAMPLING), _HYBRID) | REPLICAS | UNREAD | MIXED | IMAGES
