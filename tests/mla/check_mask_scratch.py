"""The size of TRT-LLM MLA's verify mask, and where it has none."""

from __future__ import annotations

from sglang_perf_patches.proof.comparing import live
from sglang_perf_patches.proof.mla.mask_scratch import CAPTURED, MODULES, PATCH, make
from sglang_perf_patches.proof.mla.rig import CONTEXT, furnished, server_args


def run() -> None:
    """Draft × draft cells a request, not draft × context."""
    with furnished(server_args(page_size=32), *MODULES):
        with live(PATCH):
            mask, _ = make(4).get_verify_buffers_to_fill_after_draft()
            assert mask.numel() == CAPTURED * 4 * 4
            assert make(None).get_verify_buffers_to_fill_after_draft() == [None, None]
            without = make(4, skip_prefill=True)
            assert without.get_verify_buffers_to_fill_after_draft() == [None, None]
        mask, _ = make(4).get_verify_buffers_to_fill_after_draft()
        assert mask.numel() == CAPTURED * 4 * (CONTEXT + 4)
