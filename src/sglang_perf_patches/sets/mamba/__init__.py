"""Tracking of mamba states without querying the device for what the host knows."""

SUMMARY = "hybrid models: Qwen3-Next, Qwen3.5, Nemotron-H, Kimi Linear, Falcon-H1, MiniMax"

PACKAGES = (
    *("gdn_prefill_graph", "zero_sync", "mamba2_chunk_indices", "lightning_rows"),
    *("slot_exhaustion", "freed_rows", "host_states"),
)
"""The packages of the patches, in the order of `PatchSet.patches`."""
