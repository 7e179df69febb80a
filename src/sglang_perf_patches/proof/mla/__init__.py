"""What the proofs of the mla set share; what each of them compares."""

from __future__ import annotations

from .. import Case, lent

CASES = tuple(
    Case(patch=f"mla.{name}", what=what)
    for name, what in {
        "draft-metadata": "page tables and metadata of every step of a TRT-LLM MLA draft",
        "sync-opt-out": "lengths, masks and metadata of verify, draft-extend and draft",
        "draft-extend-graph": "what FlashAttention reads in an eager and a replayed draft-extend",
        "draft-extend-metadata": "what FlashAttention reads in a replayed draft-extend",
        "page-table-bound": "FlashAttention's page tables, up to the context limit and at it",
    }.items()
)

prepare = lent.lend
