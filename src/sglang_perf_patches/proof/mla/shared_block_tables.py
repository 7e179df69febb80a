"""The steps of a TRT-LLM MLA draft read from one table what stock's steps read from theirs."""

from __future__ import annotations

from .. import Inputs
from .draft_metadata import compare_drafts

PATCH = "mla.shared-block-tables"


def compare(inputs: Inputs) -> int:
    """Compare the drafts of TRT-LLM MLA and of the backends that inherit them."""
    return compare_drafts(PATCH, inputs)
