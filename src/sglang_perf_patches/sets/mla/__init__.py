"""Speculative decoding with MLA, and the attention backends that draft and verify for it."""

SUMMARY = "speculative decoding, mostly of models with MLA such as DeepSeek"

MODULES = (
    *("draft_metadata", "sync_opt_out.body", "frozen_kv_lengths"),
    *("page_table_bound", "request_broadcast", "cache_acks"),
)
"""Where each patch is declared with its functions, in the order of `PatchSet.patches`."""
