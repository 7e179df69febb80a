"""mla.page-table-bound: FlashAttention's page tables have room for a step at the context limit.

A speculative step reads past the context by the tokens that it drafts. The request pool has room
for them; the rows of the page tables end with the context, so the kernel reads the next row there,
or past the table. Open upstream: sgl-project/sglang#34239, #35985.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....model.patching import Patching, replaces
from ..references import FLASH
from . import FITS

STATES = ("decode_cuda_graph_metadata", "target_verify_metadata", "draft_extend_metadata")
"""Where a backend with topk = 1 keeps the tables of its graphs."""

_TABLES = ("page_table", "page_table_draft_decode", "swa_page_table")
_CHECKED = ("FA3 draft-decode page_table", "FA3 decode page_table")


def install_graphs(patching: Patching) -> None:
    """Up to 0.5.15.post1, except for 0.5.13 and 0.5.14: eager tables are as wide as is read."""
    _lengthen_rows(patching)


def install_checked_graphs(patching: Patching) -> None:
    """0.5.13 to 0.5.14, which end the server if a draft reads past its table."""
    room = _lengthen_rows(patching)

    def make(inner: Any) -> Any:
        def assert_buffer_fits(used: int, capacity: int, what: str, **context: Any) -> None:
            if what in _CHECKED and used > capacity:
                capacity += room()
            inner(used, capacity, what, **context)

        return assert_buffer_fits

    patching.override(FITS, make)


def install(patching: Patching) -> None:
    """From 0.5.16 on, whose eager tables are as wide as the context where the host has no lengths.

    So is the draft-extend's, which reads all that it drafts past the context.
    """
    _lengthen_rows(patching)
    ran = patching.ran

    def make(inner: Any) -> Any:
        def init_forward_metadata(self: Any, forward_batch: Any) -> None:
            context, held = self.max_context_len, self.req_to_token.shape[1]
            if held <= context or not _speculates(self, forward_batch):
                inner(self, forward_batch)
                return
            # Why this trick: with this bound stock takes whole rows of the request pool. The table
            # is then cut back to stock's width, by which FlashAttention splits its work. Reads past
            # that width find valid cells, since they stay in the same rows.
            self.max_context_len = held
            try:
                inner(self, forward_batch)
            finally:
                self.max_context_len = context
            if _cut_back(self, context, held):
                ran.seen = True

        return init_forward_metadata

    patching.override(f"{FLASH}.init_forward_metadata", make)


def longer(table: Any, columns: int) -> Any:
    """A copy of a (rows, width) table, each of whose rows continues for `columns` more in memory.

    Those are 0: the page that padding is written to, which no request owns.
    """
    rows, width = table.shape
    whole = table.new_zeros((rows, width + columns))
    whole[:, :width] = table
    return whole[:, :width]


def _lengthen_rows(patching: Patching) -> Callable[[], int]:
    """Make the rows of the graphs' tables continue; return how many pages past their width."""
    patching.anytime("the longer rows serve stock's code too: it sees the width that it made")
    ran = patching.ran
    room = 0

    @replaces(patching, f"{FLASH}.init_cuda_graph_state")
    def init_cuda_graph_state(self: Any, max_bs: int, max_num_tokens: int, *, inner: Any) -> None:
        nonlocal room
        inner(self, max_bs, max_num_tokens)
        if not self.speculative_num_draft_tokens or not _proven(self):
            return
        width = _pages(self.max_context_len, self.page_size)
        # One more page, which may begin at the last token of the rows.
        columns = _pages(self.req_to_token.shape[1], self.page_size) - width + 1
        ran.seen = True
        room = max(room, columns)
        tables: dict[int, Any] = {}
        for state in (getattr(self, name) for name in STATES):
            for name in _TABLES:
                table = state.get(name)
                if table is not None and table.shape[1] == width:
                    if table.data_ptr() not in tables:
                        tables[table.data_ptr()] = longer(table, columns)
                    state[name] = tables[table.data_ptr()]

    return lambda: room


def _pages(tokens: int, page: int) -> int:
    return int(-(-tokens // page))


def _proven(backend: Any) -> bool:
    """Whether a backend is one whose kernel was seen to take such tables."""
    return backend.topk <= 1 and getattr(backend, "fa_impl_ver", 3) == 3


def _speculates(backend: Any, batch: Any) -> bool:
    """Whether a batch reads past its lengths, by a table that stock cuts by the context."""
    mode, spec_info = batch.forward_mode, batch.spec_info
    return (
        spec_info is not None
        and batch.seq_lens_cpu is None
        and _proven(backend)
        and batch.encoder_lens is None
        and getattr(backend, "_kv_shard_pool", None) is None
        and (mode.is_decode() or mode.is_target_verify() or mode.is_draft_extend_v2())
        and getattr(spec_info, "ragged_verify_layout", None) is None
    )


def _cut_back(backend: Any, context: int, held: int) -> bool:
    """Give the eager table stock's width; returns whether there was one to cut."""
    metadata = backend.forward_metadata
    if metadata.max_seq_len_k < held:
        return False
    metadata.max_seq_len_k -= held - context
    width = _pages(min(metadata.max_seq_len_k, held), backend.page_size)
    for name in ("page_table", "swa_page_table"):
        table = getattr(metadata, name)
        if table is not None:
            setattr(metadata, name, table[:, :width])
    return True
