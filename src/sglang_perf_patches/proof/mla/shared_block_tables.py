"""The steps of a TRT-LLM MLA draft read from one table what stock's steps read from theirs."""

from __future__ import annotations

from functools import partial

from .. import Inputs
from ..comparing import same
from .draft_metadata import EDGES, MODULE, draft, drawn

PATCH = "mla.shared-block-tables"


def compare(inputs: Inputs) -> int:
    """Compare the drafts of TRT-LLM MLA."""
    of = MODULE.TRTLLMMLAMultiStepDraftBackend
    return same(PATCH, partial(draft, of=of), [*EDGES, *inputs(drawn)])
