"""Batched decode on Apple's MLX."""

SUMMARY = "servers on MLX; measured with MLX on a CPU and for CUDA, never on a Mac"

MODULES = (
    *("hybrid_cache", "hybrid_defaults", "relay_device", "pool_write.body", "released_rows"),
    *("first_buffer", "last_row", "decode_context", "kv_arena", "length_groups"),
    *("next_turn.body", "batched_prefill"),
)
"""Where each patch is declared with its functions, in the order of `PatchSet.patches`."""
