"""The cases of the mla set."""

from __future__ import annotations

from .. import Case, lent

_HERE = __name__

CASES: tuple[Case, ...] = (
    Case(
        patch="mla.draft-metadata",
        compare=f"{_HERE}.draft_metadata:compare",
        what="page tables and metadata of every step of a TRT-LLM MLA draft",
    ),
    Case(
        patch="mla.sync-opt-out",
        compare=f"{_HERE}.sync_opt_out:compare",
        what="lengths, masks and metadata of verify, draft-extend and draft",
    ),
    Case(
        patch="mla.draft-extend-graph",
        compare=f"{_HERE}.draft_extend_graph:compare",
        what="what FlashAttention reads in an eager and in a replayed draft-extend",
    ),
    Case(
        patch="mla.draft-extend-metadata",
        compare=f"{_HERE}.draft_extend_metadata:compare",
        what="what FlashAttention reads in a replayed draft-extend",
    ),
    Case(
        patch="mla.page-table-bound",
        compare=f"{_HERE}.page_table_bound:compare",
        what="FlashAttention's page tables, up to the context limit and at it",
    ),
)


def prepare() -> None:
    """Make this process fit for the cases, before sglang is imported."""
    lent.lend()
