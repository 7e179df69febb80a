"""Names of Triton functions that its interpreter can't exchange where sglang keeps them.

The interpreter exchanges Triton's functions while a kernel runs. sglang keeps some under names of
its own, which that does not reach: such a name must hold a function that looks them up.
"""

from __future__ import annotations

import triton
import triton.language as tl


def lend() -> None:
    """Put functions that look the real ones up in the places that sglang binds at import."""
    tl.exp, tl.log, tl.log2, tl.math.exp2 = exp, log, log2, exp2


@triton.jit
def exp(x):  # type: ignore[no-untyped-def]
    return tl.math.exp(x)


@triton.jit
def log(x):  # type: ignore[no-untyped-def]
    return tl.math.log(x)


@triton.jit
def log2(x):  # type: ignore[no-untyped-def]
    return tl.math.log2(x)


@triton.jit
def exp2(x):  # type: ignore[no-untyped-def]
    return tl.exp2(x)
