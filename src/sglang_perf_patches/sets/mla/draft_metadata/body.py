"""mla.draft-metadata: a TRT-LLM MLA draft prepares what its kernel reads, and that once.

Upstream: sgl-project/sglang#26241 for what the kernel reads. All steps read the same table, which
no pull request has: the steps' metadata are equal, for all read the pages of the same requests, up
to the same length. So the first step's is prepared, and the other steps hold it. A captured graph
keeps the tensors that its steps held, so what was captured together is replayed together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....model.patching import Patching
from ..references import FORWARD_BATCH, TRTLLM_DRAFT
from . import FORWARD_MODE, INHERITED

_ANYTIME = "what stock prepares again replaces it: each step writes the same"


def install_replay(patching: Patching) -> None:
    """Up to 0.5.12.post1: give the draft backend its own eager and replay preparation.

    The inherited ones first fill ``kv_indices`` (int32, steps x tokens) and ``kv_indptr`` for
    FlashInfer's kernel. Each step's own preparation, all that is left here, reads the page table
    of the requests itself.
    """
    patching.anytime(_ANYTIME)
    ran = patching.ran
    decode = patching.get(FORWARD_MODE).DECODE
    inherited = patching.get(INHERITED).init_forward_metadata_capture_cuda_graph

    def init_forward_metadata_capture_cuda_graph(self: Any, forward_batch: Any) -> None:
        inherited(self, forward_batch)
        _share(self, forward_batch.batch_size)

    def init_forward_metadata_replay_cuda_graph(self: Any, forward_batch: Any, bs: int) -> None:
        ran.seen = True
        steps = self.attn_backends
        for step in steps[:1] if _is_shared(steps, forward_batch.batch_size) else steps:
            step.init_forward_metadata_replay_cuda_graph(
                bs,
                forward_batch.req_pool_indices,
                forward_batch.seq_lens,
                seq_lens_sum=-1,
                encoder_lens=None,
                forward_mode=decode,
                spec_info=forward_batch.spec_info,
                seq_lens_cpu=forward_batch.seq_lens_cpu,
            )

    for method in (
        init_forward_metadata_capture_cuda_graph,
        init_forward_metadata_replay_cuda_graph,
        _eager(patching),
    ):
        patching.add(f"{TRTLLM_DRAFT}.{method.__name__}", method)


def install_out_graph(patching: Patching) -> None:
    """From 0.5.13 on, where the draft has preparations of its own, and graphs have one entry."""
    patching.anytime(_ANYTIME)
    ran = patching.ran
    decode = patching.get(FORWARD_MODE).DECODE
    view = patching.module(FORWARD_BATCH).build_inner_fb_view

    def make(inner: Any) -> Any:
        def init_forward_metadata_out_graph(
            self: Any, forward_batch: Any, in_capture: bool = False
        ) -> None:
            bs = forward_batch.batch_size
            if in_capture:
                inner(self, forward_batch, in_capture=True)
                _share(self, bs)
            elif _is_shared(self.attn_backends, bs):
                ran.seen = True
                of_steps = view(forward_batch, bs=bs, forward_mode=decode)
                self.attn_backends[0].init_forward_metadata_out_graph(of_steps)
            else:
                inner(self, forward_batch)

        return init_forward_metadata_out_graph

    patching.override(f"{TRTLLM_DRAFT}.init_forward_metadata_out_graph", make)
    patching.override(f"{TRTLLM_DRAFT}.init_forward_metadata", lambda _: _eager(patching))


def _eager(patching: Patching) -> Callable[..., None]:
    ran = patching.ran

    def init_forward_metadata(self: Any, forward_batch: Any) -> None:
        ran.seen = True
        first, *others = self.attn_backends
        first.init_forward_metadata(forward_batch)
        for step in others:
            step.forward_decode_metadata = first.forward_decode_metadata

    return init_forward_metadata


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
