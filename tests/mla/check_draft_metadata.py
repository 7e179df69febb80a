"""The TRT-LLM MLA draft does not launch the kernel whose output nothing reads."""

from __future__ import annotations

from sglang_perf_patches.proof.comparing import live
from sglang_perf_patches.proof.mla.batches import draft_batch
from sglang_perf_patches.proof.mla.draft_metadata import MODULE, PARENT, PATCH
from sglang_perf_patches.proof.mla.rig import furnished, model_runner, server_args
from sglang_perf_patches.proof.mla.wheels import Counted


def run() -> None:
    """Stock launches it once; patched never."""
    assert launches() == 1
    with live(PATCH):
        assert launches() == 0


def launches() -> int:
    """How often preparing one eager draft launches the index kernel."""
    arguments = server_args(page_size=32)
    runner = model_runner(arguments, mla=True)
    with furnished(arguments, MODULE.__name__, PARENT.__name__):
        backend = MODULE.TRTLLMMLAMultiStepDraftBackend(runner, 1, 3)
        counted = Counted(backend.generate_draft_decode_kv_indices)
        backend.generate_draft_decode_kv_indices = counted
        backend.init_forward_metadata(draft_batch(runner, [40, 7]))
        return len(counted.grids)
