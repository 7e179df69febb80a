"""``mla.page-table-bound``."""

from ....model.patch import Patch, Worth, of, variant
from ..proven import TABLES
from ..references import ATTENTION, FLASH, FLASH_MODULE

FITS = f"{ATTENTION}.utils:assert_buffer_fits"

_CHECKS = "tests/mla/check_page_table_bound.py"
_EAGER = f"{FLASH}.init_forward_metadata"
_MHA_TABLE = "trtllm_mha_page_table:build_trtllm_mha_page_table"
_DEPENDS = (
    f"{FLASH}.__init__",
    _EAGER,
    f"{FLASH}.init_forward_metadata_capture_cuda_graph",
    *of(FLASH, "init_forward_metadata_replay_cuda_graph", "init_forward_metadata_out_graph"),
    *of(FLASH, "_bind_metadata_buffers", "_apply_cuda_graph_metadata"),
    f"{FLASH}.init_forward_metadata_in_graph",
    f"{ATTENTION}.triton_ops.metadata:normal_decode_set_metadata",
    f"{ATTENTION}.triton_ops.{_MHA_TABLE}",
    "sglang.kernels.ops.attention.metadata:normal_decode_set_metadata",
    "sglang.kernels.ops.attention.metadata:draft_extend_set_metadata",
    f"sglang.kernels.ops.kvcache.{_MHA_TABLE}",
)


_GRAPHS = f"{FLASH}.init_cuda_graph_state"

PATCH = Patch(
    id="mla.page-table-bound",
    only_with=("speculation", "single-drafts", "fa3"),
    proven_with={**TABLES, "tracked-states": f"{_CHECKS}: of_a_hybrid_model"},
    summary="makes FlashAttention's page tables long enough for drafts at the context limit",
    worth=Worth("b", "near the context limit, stock crashes with an illegal memory access"),
    upstream=("sgl-project/sglang#34239", "sgl-project/sglang#35985"),
    variants=(
        variant(
            *(__name__, "0.5.9 … 0.5.12.post1, 0.5.15 … 0.5.15.post1", "install_graphs"),
            targets=(_GRAPHS,),
            depends=(*_DEPENDS, f"{FLASH_MODULE}:normal_decode_set_metadata"),
        ),
        variant(
            *(__name__, "0.5.13 … 0.5.14", "install_checked_graphs"),
            targets=(_GRAPHS, FITS),
            depends=_DEPENDS,
        ),
        variant(__name__, "0.5.16 … 0.5.23", targets=(_GRAPHS, _EAGER), depends=_DEPENDS),
    ),
)
