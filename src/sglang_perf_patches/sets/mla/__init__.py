"""Speculative decoding with MLA, and the attention backends that draft and verify for it."""

SUMMARY = "speculative decoding, mostly of models with MLA such as DeepSeek"

PACKAGES = ("draft_metadata", "sync_opt_out", "page_table_bound", "request_broadcast")
"""The packages of the patches, in the order of `PatchSet.patches`."""
