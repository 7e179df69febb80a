"""The cases of the mla set."""

from __future__ import annotations

from .. import Case, lent

_ROOMS = "sglang_perf_patches.sets.mla"

CASES: tuple[Case, ...] = (
    Case(
        patch="mla.draft-metadata",
        compare=f"{_ROOMS}.draft_metadata.proof:compare",
        what="page tables and metadata of every step of a TRT-LLM MLA draft",
    ),
    Case(
        patch="mla.sync-opt-out",
        compare=f"{_ROOMS}.sync_opt_out.proof:compare",
        what="lengths, masks and metadata of verify, draft-extend and draft",
    ),
    Case(
        patch="mla.draft-extend-graph",
        compare=f"{_ROOMS}.draft_extend_graph.proof:compare",
        what="what FlashAttention reads in an eager and in a replayed draft-extend",
    ),
    Case(
        patch="mla.draft-extend-metadata",
        compare=f"{_ROOMS}.draft_extend_metadata.proof:compare",
        what="what FlashAttention reads in a replayed draft-extend",
    ),
    Case(
        patch="mla.page-table-bound",
        compare=f"{_ROOMS}.page_table_bound.proof:compare",
        what="FlashAttention's page tables, up to the context limit and at it",
    ),
)


def prepare() -> None:
    """Make this process fit for the cases, before sglang is imported."""
    lent.lend()
