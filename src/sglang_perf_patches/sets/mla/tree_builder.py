"""The builder of a verify's trees up to 0.5.16, whose callers pass every argument by position."""

from __future__ import annotations

from functools import cache
from typing import Any

BUILD_TREE = "sglang.srt.speculative.eagle_utils:build_tree_kernel_efficient"

SEQ_LENS, SEQ_LENS_SUM, DRAFT, MODE, BUFFER = 4, 5, 8, 9, 10
"""Places: prefix lengths, their sum, tokens of a tree, the mask's layout and the mask to fill."""


def unfilled(mask: Any) -> Any:
    """The same memory as a tensor that the builder's fill leaves as it is, and launches nothing.

    Why this trick: the fill is a call on the tensor in the middle of the builder, and the kernel
    after it, which writes all cells that are read, goes by the tensor's address.
    """
    return mask.as_subclass(_unfilled())


@cache
def _unfilled() -> Any:
    import torch

    class Unfilled(torch.Tensor):  # type: ignore[misc, unused-ignore]
        """A mask of which the kernel that comes next writes what is read."""

        __torch_function__ = torch._C._disabled_torch_function_impl

        def fill_(self, _value: Any) -> Any:
            return self

    return Unfilled
