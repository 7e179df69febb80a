"""Batched decode on Apple's MLX."""

from ...patch import Patch

SUMMARY = "per-layer rebuilding of what depends only on the sequence lengths, in MLX batched decode"
PATCHES: tuple[Patch, ...] = ()
