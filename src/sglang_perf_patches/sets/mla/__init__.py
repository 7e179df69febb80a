"""Speculative decoding with MLA, and the attention backends that draft and verify for it."""

from ...model.patch import Patch
from .draft_metadata import PATCH as DRAFT_METADATA
from .page_table_bound import PATCH as PAGE_TABLE_BOUND
from .sync_opt_out import PATCH as SYNC_OPT_OUT

SUMMARY = "speculative decoding, mostly of models with MLA such as DeepSeek"

PATCHES: tuple[Patch, ...] = (DRAFT_METADATA, SYNC_OPT_OUT, PAGE_TABLE_BOUND)
