"""The prefix of the Triton verify's mask is not filled, but where something reads it."""

from __future__ import annotations

from typing import Any

import sglang_perf_patches
from sglang_perf_patches.proof.comparing import live
from sglang_perf_patches.proof.mla.rig import furnished, server_args
from sglang_perf_patches.proof.mla.verify_mask_fill import (
    HAS_MASKS,
    HAS_TRIVIAL,
    MODULES,
    PATCH,
    build,
    make,
    mask_of,
)
from sglang_perf_patches.sets.mla import verify_mask_fill


def run() -> None:
    """See the fill go; see that each exception is left to stock."""
    kept, verify_mask_fill.WORTH = verify_mask_fill.WORTH, 0
    try:
        for trivial in (False, True) if HAS_TRIVIAL else (False,):
            assert prefix_filled(trivial)
            with live(PATCH):
                assert not prefix_filled(trivial)
        with live(PATCH, ran=False):
            assert prefix_filled(False, enable_deterministic_inference=True)
            report = sglang_perf_patches.activate(PATCH)
            assert report.of(PATCH).state == "gated"
            assert "deterministic" in report.of(PATCH).reason
    finally:
        verify_mask_fill.WORTH = kept
    if HAS_TRIVIAL:
        with live(PATCH, ran=HAS_MASKS):
            assert prefix_filled(True), "a small buffer is filled faster"


def prefix_filled(trivial: bool, **more: Any) -> bool:
    """Whether building a tree writes the mask's prefix cells."""
    draft = 1 if trivial else 3
    case = {
        "draft": draft,
        "requests": [(30, tuple(range(draft - 1))), (9, (0,) * (draft - 1))],
        "mla": False,
        "window": None,
        "trivial": trivial,
        "seed": 0,
    }
    arguments = server_args(speculative_num_draft_tokens=draft, **more)
    with furnished(arguments, *MODULES):
        backend, _, _ = make(case, **more)
        buffer = mask_of(backend)
        buffer.zero_()
        verify_input = build(case, backend)
        assert verify_input.custom_mask.data_ptr() == buffer.data_ptr()
        filled = int(buffer[1:30].sum())
        assert filled in (0, 29)
        return bool(filled)
