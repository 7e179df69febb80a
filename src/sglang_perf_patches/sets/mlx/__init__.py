"""Batched decode on Apple's MLX."""

SUMMARY = "servers on MLX; measured with MLX on a CPU and for CUDA, never on a Mac"

PACKAGES = (
    *("hybrid_cache", "hybrid_defaults", "relay_device", "pool_write", "released_rows"),
    *("first_buffer", "last_row", "decode_context", "kv_arena", "length_groups"),
    *("next_turn", "batched_prefill"),
)
"""The packages of the patches, in the order of `PatchSet.patches`."""
