"""A TRT-LLM MLA draft prepares its metadata once for all steps.

Upstream: sgl-project/sglang#26241 for what the kernel reads. No pull request has the rest: steps
read the pages of the same requests, up to the same length, so their metadata are equal. The first
step's is prepared, and the other steps hold it. A captured graph keeps the tensors that its steps
held, so what was captured together is replayed together.
"""

from __future__ import annotations

from typing import Any

from ....model.declaration import Declaration, ports
from ....model.patch import of
from ..proven import TABLES
from ..references import ATTENTION, FORWARD_BATCH, TRTLLM, TRTLLM_DRAFT

_INHERITED = f"{ATTENTION}.flashinfer_mla_backend:FlashInferMLAMultiStepDraftBackend"
_FORWARD_MODE = f"{FORWARD_BATCH}:ForwardMode"
_BEFORE, _SINCE = "… 0.5.12.post1", "0.5.13 …"

PATCH = Declaration(
    *(__name__, "0.5.9 … 0.5.23"),
    only_with=("speculation", "mla", "trtllm-mla"),
    proven_with=TABLES,
    worth=ports("sgl-project/sglang#26241"),
    upstream=("sgl-project/sglang#26241",),
    upstream_note="built in since 0.5.13 in part: each step still builds its own table",
    anchors=(TRTLLM_DRAFT,),
    depends=(
        TRTLLM_DRAFT,
        _INHERITED,
        *of(TRTLLM, "init_forward_metadata", "init_forward_metadata_capture_cuda_graph"),
        *of(TRTLLM, "init_forward_metadata_replay_cuda_graph", "init_forward_metadata_out_graph"),
        *of(TRTLLM, "_init_cuda_graph_metadata", "_apply_cuda_graph_metadata", "forward_decode"),
        f"{FORWARD_BATCH}:build_inner_fb_view",
    ),
    awaits=(FORWARD_BATCH,),
    anytime="what stock prepares again replaces it: each step writes the same",
)
# Backends that inherit the draft. 0.5.23 lacks TokenSpeed's names, but for which it equals 0.5.22.
_TOKENSPEED = f"{ATTENTION}.tokenspeed_mla_backend:TokenspeedMLA"
_CUTEDSL = f"{ATTENTION}.cutedsl_mla_backend:CuteDslMLA"
PATCH.on("… 0.5.16", depends=(f"{_TOKENSPEED}Backend", f"{_TOKENSPEED}MultiStepDraftBackend"))
PATCH.on("0.5.17 …", depends=(f"{_CUTEDSL}Backend", f"{_CUTEDSL}MultiStepDraftBackend"))


@PATCH.setup()
def setup(patch):
    patch.state.decode = patch.get(_FORWARD_MODE).DECODE
    # From 0.5.13 on.
    patch.state.view = getattr(patch.module(FORWARD_BATCH), "build_inner_fb_view", None)


# Up to 0.5.12.post1 the draft inherits its preparations. These first fill ``kv_indices`` (int32,
# steps x tokens) and ``kv_indptr`` for FlashInfer's kernel. Each step's own preparation, which is
# all that is left here, reads the page table of the requests itself.


@PATCH.replaces(
    f"{TRTLLM_DRAFT}.init_forward_metadata_capture_cuda_graph", releases=_BEFORE, adds=True
)
def init_forward_metadata_capture_cuda_graph(self, forward_batch, *, patch):
    patch.get(_INHERITED).init_forward_metadata_capture_cuda_graph(self, forward_batch)
    _share(self, forward_batch.batch_size)


@PATCH.replaces(
    f"{TRTLLM_DRAFT}.init_forward_metadata_replay_cuda_graph", releases=_BEFORE, adds=True
)
def init_forward_metadata_replay_cuda_graph(self, forward_batch, bs, *, patch):
    patch.ran.seen = True
    steps = self.attn_backends
    for step in steps[:1] if _is_shared(steps, forward_batch.batch_size) else steps:
        step.init_forward_metadata_replay_cuda_graph(
            *(bs, forward_batch.req_pool_indices, forward_batch.seq_lens),
            seq_lens_sum=-1,
            encoder_lens=None,
            forward_mode=patch.state.decode,
            spec_info=forward_batch.spec_info,
            seq_lens_cpu=forward_batch.seq_lens_cpu,
        )


@PATCH.replaces(f"{TRTLLM_DRAFT}.init_forward_metadata_out_graph", releases=_SINCE)
def init_forward_metadata_out_graph(self, forward_batch, in_capture=False, *, patch, stock):
    bs = forward_batch.batch_size
    if in_capture:
        stock(self, forward_batch, in_capture=True)
        _share(self, bs)
    elif _is_shared(self.attn_backends, bs):
        patch.ran.seen = True
        of_steps = patch.state.view(forward_batch, bs=bs, forward_mode=patch.state.decode)
        self.attn_backends[0].init_forward_metadata_out_graph(of_steps)
    else:
        stock(self, forward_batch)


@PATCH.replaces(f"{TRTLLM_DRAFT}.init_forward_metadata", releases=_BEFORE, adds=True)
@PATCH.replaces(f"{TRTLLM_DRAFT}.init_forward_metadata", releases=_SINCE)
def init_forward_metadata(self, forward_batch, *, patch):
    patch.ran.seen = True
    first, *others = self.attn_backends
    first.init_forward_metadata(forward_batch)
    for step in others:
        step.forward_decode_metadata = first.forward_decode_metadata


def _share(draft: Any, bs: int) -> None:
    """Make all steps hold what the first one's graph was captured with."""
    first, *others = draft.attn_backends
    for step in others:
        step.decode_cuda_graph_metadata[bs] = first.decode_cuda_graph_metadata[bs]
        step.forward_decode_metadata = first.decode_cuda_graph_metadata[bs]


def _is_shared(steps: list[Any], bs: int) -> bool:
    """Whether a graph's steps do; not if it was captured before the patch was live."""
    held = steps[0].decode_cuda_graph_metadata.get(bs)
    return all(step.decode_cuda_graph_metadata.get(bs) is held for step in steps[1:])
