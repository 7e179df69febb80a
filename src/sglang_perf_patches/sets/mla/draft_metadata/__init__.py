"""``mla.draft-metadata``."""

from ....model.patch import Patch, Variant, Worth
from ....model.releases import between
from ..proven import TABLES
from ..references import ATTENTION, FORWARD_BATCH, TRTLLM, TRTLLM_DRAFT

INHERITED = f"{ATTENTION}.flashinfer_mla_backend:FlashInferMLAMultiStepDraftBackend"
FORWARD_MODE = f"{FORWARD_BATCH}:ForwardMode"

_BODY = f"{__name__}.body"
_DEPENDS = (
    TRTLLM_DRAFT,
    INHERITED,
    f"{TRTLLM}.init_forward_metadata",
    f"{TRTLLM}.init_forward_metadata_capture_cuda_graph",
    f"{TRTLLM}.init_forward_metadata_replay_cuda_graph",
    f"{TRTLLM}.init_forward_metadata_out_graph",
    f"{TRTLLM}._init_cuda_graph_metadata",
    f"{TRTLLM}._apply_cuda_graph_metadata",
    f"{TRTLLM}.forward_decode",
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


def _out_graph(first: str, last: str, *heirs: str) -> Variant:
    return Variant(
        releases=between(first, last),
        install=f"{_BODY}:install_out_graph",
        targets=(
            f"{TRTLLM_DRAFT}.init_forward_metadata_out_graph",
            f"{TRTLLM_DRAFT}.init_forward_metadata",
        ),
        depends=(*_DEPENDS, *heirs),
    )


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
        Variant(
            releases=between("0.5.9", "0.5.12.post1"),
            install=f"{_BODY}:install_replay",
            targets=(),
            adds=(
                f"{TRTLLM_DRAFT}.init_forward_metadata_capture_cuda_graph",
                f"{TRTLLM_DRAFT}.init_forward_metadata_replay_cuda_graph",
                f"{TRTLLM_DRAFT}.init_forward_metadata",
            ),
            depends=(*_DEPENDS, *_TOKENSPEED),
            awaits=(FORWARD_BATCH,),
        ),
        _out_graph("0.5.13", "0.5.16", *_TOKENSPEED),
        # Without TokenSpeed's names, which 0.5.23 lacks, the code of 0.5.22 and 0.5.23 is equal.
        _out_graph("0.5.17", "0.5.23", *_CUTEDSL),
    ),
)
