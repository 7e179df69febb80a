"""mla.draft-metadata: a multi-step draft prepares only what the TRT-LLM MLA kernel reads.

Upstream: sgl-project/sglang#26241.
"""

from __future__ import annotations

from typing import Any

from ...model.patching import Patching

BACKEND = "sglang.srt.layers.attention.trtllm_mla_backend:TRTLLMMLAMultiStepDraftBackend"
FORWARD_MODE = "sglang.srt.model_executor.forward_batch_info:ForwardMode"


def install(patching: Patching) -> None:
    """Give the draft backend its own eager and replay preparation.

    The inherited ones first fill ``kv_indices`` (int32, steps x tokens) and ``kv_indptr`` for
    FlashInfer's kernel. Each step's own preparation, all that is left here, reads the page table
    of the requests itself.
    """
    patching.anytime("what stock prepares again replaces what was prepared here")
    ran = patching.ran
    decode = patching.get(FORWARD_MODE).DECODE

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

    patching.add(f"{BACKEND}.init_forward_metadata", init_forward_metadata)
    patching.add(
        f"{BACKEND}.init_forward_metadata_replay_cuda_graph",
        init_forward_metadata_replay_cuda_graph,
    )
