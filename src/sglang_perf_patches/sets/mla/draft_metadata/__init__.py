"""``mla.draft-metadata``."""

from ....model.patch import Patch, Worth, of, variant
from ..proven import TABLES
from ..references import ATTENTION, FORWARD_BATCH, TRTLLM, TRTLLM_DRAFT

INHERITED = f"{ATTENTION}.flashinfer_mla_backend:FlashInferMLAMultiStepDraftBackend"
FORWARD_MODE = f"{FORWARD_BATCH}:ForwardMode"

_DEPENDS = (
    TRTLLM_DRAFT,
    INHERITED,
    *of(TRTLLM, "init_forward_metadata", "init_forward_metadata_capture_cuda_graph"),
    *of(TRTLLM, "init_forward_metadata_replay_cuda_graph", "init_forward_metadata_out_graph"),
    *of(TRTLLM, "_init_cuda_graph_metadata", "_apply_cuda_graph_metadata", "forward_decode"),
    f"{FORWARD_BATCH}:build_inner_fb_view",
)
_TOKENSPEED = (
    f"{ATTENTION}.tokenspeed_mla_backend:TokenspeedMLABackend",
    f"{ATTENTION}.tokenspeed_mla_backend:TokenspeedMLAMultiStepDraftBackend",
)
_CUTEDSL = (
    f"{ATTENTION}.cutedsl_mla_backend:CuteDslMLABackend",
    f"{ATTENTION}.cutedsl_mla_backend:CuteDslMLAMultiStepDraftBackend",
)
"""Backends that inherit the draft."""


_OUT_GRAPH = {
    "targets": of(TRTLLM_DRAFT, "init_forward_metadata_out_graph", "init_forward_metadata"),
    "awaits": (FORWARD_BATCH,),
}

PATCH = Patch(
    id="mla.draft-metadata",
    only_with=("speculation", "mla", "trtllm-mla"),
    proven_with=TABLES,
    summary="a TRT-LLM MLA draft prepares its metadata once for all steps",
    worth=Worth("c", "sgl-project/sglang#26241"),
    upstream=("sgl-project/sglang#26241",),
    upstream_note="built in since 0.5.13 in part: each step still builds its own table",
    anchors=(TRTLLM_DRAFT,),
    variants=(
        variant(
            *(__name__, "0.5.9 … 0.5.12.post1", "install_replay"),
            targets=(),
            adds=(
                f"{TRTLLM_DRAFT}.init_forward_metadata_capture_cuda_graph",
                f"{TRTLLM_DRAFT}.init_forward_metadata_replay_cuda_graph",
                f"{TRTLLM_DRAFT}.init_forward_metadata",
            ),
            depends=(*_DEPENDS, *_TOKENSPEED),
            awaits=(FORWARD_BATCH,),
        ),
        variant(
            *(__name__, "0.5.13 … 0.5.16", "install_out_graph"),
            depends=(*_DEPENDS, *_TOKENSPEED),
            **_OUT_GRAPH,
        ),
        # Without TokenSpeed's names, which 0.5.23 lacks, the code of 0.5.22 and 0.5.23 is equal.
        variant(
            *(__name__, "0.5.17 … 0.5.23", "install_out_graph"),
            depends=(*_DEPENDS, *_CUTEDSL),
            **_OUT_GRAPH,
        ),
    ),
)
