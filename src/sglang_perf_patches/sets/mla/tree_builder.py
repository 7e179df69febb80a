"""The builder of a verify's trees up to 0.5.16, whose callers pass every argument by position."""

from __future__ import annotations

BUILD_TREE = "sglang.srt.speculative.eagle_utils:build_tree_kernel_efficient"

SEQ_LENS, SEQ_LENS_SUM, DRAFT, BUFFER = 4, 5, 8, 10
"""Places: prefix lengths, their sum, tokens of a tree, and the mask to fill."""
