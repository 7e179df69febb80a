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
PREFILL_AND_DECODE = ANY | WITHOUT_CACHE | SAMPLING | {"quantised-weights": _CASE}
