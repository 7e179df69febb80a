"""Triton functions for the names under which sglang keeps Triton's at import.

The interpreter exchanges Triton's functions while a kernel runs, which does not reach these names:
such a name must hold a function that looks them up.
"""

from __future__ import annotations

import triton
import triton.language as tl


def lend() -> None:
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
