"""Tracking of mamba states without querying the device for what the host knows."""

SUMMARY = "hybrid models: Qwen3-Next, Qwen3.5, Nemotron-H, Kimi Linear, Falcon-H1, MiniMax"

MODULES = (
    *("gdn_prefill_graph.body", "zero_sync", "mamba2_chunk_indices", "lightning_rows"),
    *("slot_exhaustion.body", "freed_rows", "host_states"),
)
"""Where each patch is declared with its functions, in the order of `PatchSet.patches`."""
