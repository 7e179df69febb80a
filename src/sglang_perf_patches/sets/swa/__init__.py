"""Sliding-window KV: in disaggregated decode, and on ordinary servers."""

SUMMARY = "models with sliding windows: gpt-oss, Gemma, EXAONE, Olmo"

MODULES = (
    *("tail_prealloc.body", "page_size_1", "idle_admission", "window_pool", "pool_ratio"),
    *("window_metadata", "prefill_graph.body"),
)
"""Where each patch is declared with its functions, in the order of `PatchSet.patches`."""
