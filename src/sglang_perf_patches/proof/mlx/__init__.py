"""What the proofs of the mlx set share; what each of them compares."""

from __future__ import annotations

from .. import Case
from . import standalone

_LOGITS = "logits of every forward pass"
_KV = f"{_LOGITS}, tokens, KV in the pool"

CASES = tuple(
    Case(patch=f"mlx.{name}", what=what, device="mlx", needs=("mlx", "mlx_lm"))
    for name, what in {
        "pool-write": f"{_KV}, and what is kept of requests",
        "first-buffer": f"{_KV}, and the room of buffers",
        "last-row": f"{_LOGITS}, tokens and logprobs",
        "next-turn": f"{_LOGITS}, with a window to 1e-4",
        "decode-context": _LOGITS,
        "kv-arena": f"{_KV}; steps that fail, full buffers",
        "length-groups": f"{_KV}; on a GPU, logits to a hundredth",
        "merged-cache": f"{_LOGITS}, tokens, and steps that fail",
        "batched-prefill": f"{_KV}; on a GPU, logits to a twentieth",
    }.items()
)

prepare = standalone.lend
