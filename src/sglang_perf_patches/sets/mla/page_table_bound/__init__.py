"""Makes FlashAttention's page tables long enough for drafts at the context limit.

A speculative step reads past the context by the tokens that it drafts. The request pool has room
for them; the rows of the page tables end with the context, so the kernel reads the next row there,
or past the table. Here each row of a table continues in memory. Kernels still see stock's width, by
which FlashAttention splits its work.
"""

from __future__ import annotations

from typing import Any

from ....model.declaration import Declaration, fixes
from ....model.patch import of
from ..proven import TABLES
from ..references import ATTENTION

_MODULE = f"{ATTENTION}.flashattention_backend"
FLASH = f"{_MODULE}:FlashAttentionBackend"
_MHA_TABLE = "trtllm_mha_page_table:build_trtllm_mha_page_table"

PATCH = Declaration(
    *(__name__, "0.5.9 … 0.5.23"),
    only_with=("speculation", "single-drafts", "fa3"),
    proven_with={
        **TABLES,
        "tracked-states": "tests/mla/check_page_table_bound.py: of_a_hybrid_model",
    },
    worth=fixes("near the context limit, stock crashes with an illegal memory access"),
    upstream=("sgl-project/sglang#34239", "sgl-project/sglang#35985"),
    depends=(
        *of(FLASH, "__init__", "init_forward_metadata", "init_forward_metadata_capture_cuda_graph"),
        *of(FLASH, "init_forward_metadata_replay_cuda_graph", "init_forward_metadata_out_graph"),
        *of(FLASH, "_bind_metadata_buffers", "_apply_cuda_graph_metadata"),
        f"{FLASH}.init_forward_metadata_in_graph",
        f"{ATTENTION}.triton_ops.metadata:normal_decode_set_metadata",
        f"{ATTENTION}.triton_ops.{_MHA_TABLE}",
        "sglang.kernels.ops.attention.metadata:normal_decode_set_metadata",
        "sglang.kernels.ops.attention.metadata:draft_extend_set_metadata",
        f"sglang.kernels.ops.kvcache.{_MHA_TABLE}",
    ),
    anytime="the longer rows serve stock's code too: it sees the width that it made",
)
_OLD = "… 0.5.12.post1, 0.5.15 … 0.5.15.post1"
PATCH.on(_OLD, depends=(f"{_MODULE}:normal_decode_set_metadata",))

STATES = ("decode_cuda_graph_metadata", "target_verify_metadata", "draft_extend_metadata")
"""Where a backend with topk = 1 keeps the tables of its graphs."""

_TABLES = ("page_table", "page_table_draft_decode", "swa_page_table")


@PATCH.setup()
def setup(patch):
    patch.state.columns = 0  # how many pages the rows continue past their width


@PATCH.replaces(f"{FLASH}.init_cuda_graph_state")
def init_cuda_graph_state(self, max_bs, max_num_tokens, *, patch, stock):
    stock(self, max_bs, max_num_tokens)
    if not self.speculative_num_draft_tokens or not _proven(self):
        return
    width = _pages(self.max_context_len, self.page_size)
    # One more page, which may begin at the last token of the rows.
    columns = _pages(self.req_to_token.shape[1], self.page_size) - width + 1
    patch.ran.seen = True
    patch.state.columns = max(patch.state.columns, columns)
    made = {}  # tables share memory; so do the longer ones
    for state in (getattr(self, name) for name in STATES):
        for name in _TABLES:
            table = state.get(name)
            if table is not None and table.shape[1] == width:
                if table.data_ptr() not in made:
                    made[table.data_ptr()] = longer(table, columns)
                state[name] = made[table.data_ptr()]


@PATCH.replaces(f"{ATTENTION}.utils:assert_buffer_fits", releases="0.5.13 … 0.5.14")
def assert_buffer_fits(used, capacity, what, *, patch, stock, **context):
    """These releases end the server if a draft reads past its table."""
    if what in {"FA3 draft-decode page_table", "FA3 decode page_table"} and used > capacity:
        capacity += patch.state.columns
    stock(used, capacity, what, **context)


@PATCH.replaces(f"{FLASH}.init_forward_metadata", releases="0.5.16 …")
def init_forward_metadata(self, forward_batch, *, patch, stock):
    """From 0.5.16 on, eager tables are as wide as the context where the host has no lengths.

    So is the draft-extend's, which reads past the context. Before, they are as wide as is read.
    """
    context, held = self.max_context_len, self.req_to_token.shape[1]
    if held <= context or not _speculates(self, forward_batch):
        stock(self, forward_batch)
        return
    # With this bound stock takes whole rows of the request pool, and the table is then cut back to
    # stock's width. Reads past that width find valid cells, since they stay in the same rows.
    self.max_context_len = held
    try:
        stock(self, forward_batch)
    finally:
        self.max_context_len = context
    metadata = self.forward_metadata
    if metadata.max_seq_len_k < held:
        return
    patch.ran.seen = True
    metadata.max_seq_len_k -= held - context
    width = _pages(min(metadata.max_seq_len_k, held), self.page_size)
    for name in ("page_table", "swa_page_table"):
        table = getattr(metadata, name)
        if table is not None:
            setattr(metadata, name, table[:, :width])


def longer(table: Any, columns: int) -> Any:
    """A copy of a (rows, width) table, each of whose rows continues for `columns` more in memory.

    Those are 0: the page that padding is written to, which no request owns.
    """
    rows, width = table.shape
    whole = table.new_zeros((rows, width + columns))
    whole[:, :width] = table
    return whole[:, :width]


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
