"""With which features of a server each mlx patch was proven, and by which check.

MLX's backend is one process without CUDA graphs. What its runner was never played with is gated.
"""

from collections.abc import Mapping

_CASE = "tests/mlx/test_cases.py"
_ANY = {
    # No MLX server has CUDA graphs; those of the checks run on a CPU.
    "cpu": _CASE,
    "no-cuda-graphs": _CASE,
    # Prompts whole and in chunks, steps that are read before the next one is built.
    "whole-prefills": _CASE,
    "no-overlap": _CASE,
}
_WITHOUT_CACHE = {"no-radix-cache": _CASE}
_SAMPLING = {"mlx-sampling": _CASE}
_FOUR_BITS = {"quantised-weights": _CASE}
# Each replica is a scheduler of its own.
_REPLICAS = {"data-parallel": "tests/server/test_live_proof.py"}

PROVEN: Mapping[str, Mapping[str, str]] = {
    **{
        f"mlx.{name}": _ANY | _WITHOUT_CACHE | _SAMPLING | _FOUR_BITS | _REPLICAS
        for name in ("pool-write", "first-buffer", "last-row", "kv-arena")
    },
    # Without the radix cache no prompt continues a turn.
    "mlx.next-turn": _ANY | _SAMPLING | _REPLICAS,
    # Without mixed chunks 0.5.10 loses requests that decode; with a radix cache it is wrong.
    "mlx.merged-cache": _ANY | _WITHOUT_CACHE | {"mixed-chunks": "tests/server/test_live_proof.py"},
    "mlx.decode-context": _ANY | _WITHOUT_CACHE | _REPLICAS,
}
"""Patch → feature → check."""
