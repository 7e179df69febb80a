"""The builder of a verify's trees up to 0.5.16, whose callers give every argument by its place."""

BUILD_TREE = "sglang.srt.speculative.eagle_utils:build_tree_kernel_efficient"

SEQ_LENS, SEQ_LENS_SUM, DRAFT, MODE, BUFFER = 4, 5, 8, 9, 10
"""Places: prefix lengths, their sum, tokens of a tree, the mask's layout and the mask to fill."""
