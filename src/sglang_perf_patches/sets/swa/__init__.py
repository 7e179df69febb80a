"""Sliding-window KV: in disaggregated decode, and on ordinary servers."""

SUMMARY = "models with sliding windows: gpt-oss, Gemma, EXAONE, Olmo"

PACKAGES = (
    *("tail_prealloc", "page_size_1", "idle_admission", "window_pool", "pool_ratio"),
    *("window_metadata", "prefill_graph"),
)
"""The packages of the patches, in the order of `PatchSet.patches`."""
