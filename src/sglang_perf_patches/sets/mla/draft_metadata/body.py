"""mla.draft-metadata: a TRT-LLM MLA draft prepares what its kernel reads, and that once.

Upstream: sgl-project/sglang#26241 for what the kernel reads. All steps read the same table, which
no pull request has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....model.patching import Patching
from ..references import TRTLLM_DRAFT
from . import FORWARD_MODE, INHERITED

Method = Callable[..., None]


def install_replay(patching: Patching) -> None:
    """Up to 0.5.12.post1: give the draft backend its own eager and replay preparation.

    The inherited ones first fill ``kv_indices`` (int32, steps x tokens) and ``kv_indptr`` for
    FlashInfer's kernel. Each step's own preparation, all that is left here, reads the page table
    of the requests itself.
    """
    ran = patching.ran
    decode = patching.get(FORWARD_MODE).DECODE
    inherited = patching.get(INHERITED).init_forward_metadata_capture_cuda_graph

    def init_forward_metadata(self: Any, forward_batch: Any) -> None:
        ran.seen = True
        for step in self.attn_backends:
            step.init_forward_metadata(forward_batch)

    def init_forward_metadata_replay_cuda_graph(self: Any, forward_batch: Any, bs: int) -> None:
        ran.seen = True
        for step in self.attn_backends:
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

    shared = _Shared(patching)
    for method in (
        shared.capture(inherited),
        shared.replay(init_forward_metadata_replay_cuda_graph),
        shared.eager(init_forward_metadata),
    ):
        patching.add(f"{TRTLLM_DRAFT}.{method.__name__}", method)


def install_out_graph(patching: Patching) -> None:
    """From 0.5.13 on, where the draft has preparations of its own, and graphs have one entry."""
    shared = _Shared(patching)

    def make(inner: Method) -> Method:
        capturing, replaying = shared.capture(inner), shared.replay(inner)

        def init_forward_metadata_out_graph(
            self: Any, forward_batch: Any, in_capture: bool = False
        ) -> None:
            if in_capture:
                capturing(self, forward_batch, in_capture=True)
            else:
                replaying(self, forward_batch)

        return init_forward_metadata_out_graph

    patching.override(f"{TRTLLM_DRAFT}.init_forward_metadata_out_graph", make)
    patching.override(f"{TRTLLM_DRAFT}.init_forward_metadata", shared.eager)


class _Shared:
    """Prepares a draft's first step; the other steps hold its metadata.

    The steps' metadata are equal: all read the pages of the same requests, up to the same length.
    A captured graph keeps the tensors that its steps held, so what was captured together is
    replayed together.
    """

    def __init__(self, patching: Patching) -> None:
        patching.anytime("what stock prepares again replaces it: each step writes the same")
        self._ran = patching.ran

    def capture(self, inner: Method) -> Method:
        def init_forward_metadata_capture_cuda_graph(
            draft: Any, forward_batch: Any, *args: Any, **kwargs: Any
        ) -> None:
            inner(draft, forward_batch, *args, **kwargs)
            first = draft.attn_backends[0].decode_cuda_graph_metadata[forward_batch.batch_size]
            for step in draft.attn_backends[1:]:
                step.decode_cuda_graph_metadata[forward_batch.batch_size] = first
                step.forward_decode_metadata = first

        return init_forward_metadata_capture_cuda_graph

    def replay(self, inner: Method) -> Method:
        def init_forward_metadata_replay_cuda_graph(
            draft: Any, forward_batch: Any, *args: Any, **kwargs: Any
        ) -> None:
            if not _is_shared(draft.attn_backends, forward_batch.batch_size):
                inner(draft, forward_batch, *args, **kwargs)
                return
            self._ran.seen = True
            _first_alone(draft, lambda: inner(draft, forward_batch, *args, **kwargs))

        return init_forward_metadata_replay_cuda_graph

    def eager(self, inner: Method) -> Method:
        def init_forward_metadata(draft: Any, forward_batch: Any) -> None:
            self._ran.seen = True
            _first_alone(draft, lambda: inner(draft, forward_batch))
            first = draft.attn_backends[0]
            for step in draft.attn_backends[1:]:
                step.forward_decode_metadata = first.forward_decode_metadata

        return init_forward_metadata


def _is_shared(steps: list[Any], bs: int) -> bool:
    held = steps[0].decode_cuda_graph_metadata.get(bs)
    return all(step.decode_cuda_graph_metadata.get(bs) is held for step in steps[1:])


def _first_alone(draft: Any, act: Callable[[], None]) -> None:
    """Call `act` while the draft has its first step only.

    Why this trick: stock goes over ``range(speculative_num_steps - 1)`` and indexes its backends by
    it, so the number is 2 for one of them.
    """
    steps, count = draft.attn_backends, draft.speculative_num_steps
    draft.attn_backends, draft.speculative_num_steps = steps[:1], 2
    try:
        act()
    finally:
        draft.attn_backends, draft.speculative_num_steps = steps, count
