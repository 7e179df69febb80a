"""The prefix of the Triton verify's mask is not filled, except where something reads it."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

import sglang_perf_patches
from sglang_perf_patches.proof.comparing import live
from sglang_perf_patches.proof.mla.rig import CONTEXT, REQUESTS, furnished, server_args
from sglang_perf_patches.proof.mla.verify_mask_fill import (
    HAS_MASKS,
    HAS_TRIVIAL,
    MODULES,
    PATCH,
    Case,
    build,
    make,
    mask_of,
)
from sglang_perf_patches.sets.mla import verify_mask_fill

_CASE: Case = {
    "draft": 3,
    "requests": [(30, (0, 1)), (9, (0, 0))],
    "mla": False,
    "window": None,
    "trivial": False,
    "deterministic": False,
    "seed": 0,
}
_ONE_NODE: Case = {"draft": 1, "requests": [(30, ()), (9, ())], "trivial": True}


def run() -> None:
    """See the fill go, and see each exception left to stock."""
    kept, verify_mask_fill.WORTH = verify_mask_fill.WORTH, 0
    try:
        for trivial in (False, True) if HAS_TRIVIAL else (False,):
            assert prefix_filled(trivial)
            with live(PATCH):
                assert not prefix_filled(trivial)
        if HAS_TRIVIAL:
            larger_than_captured()
            with live(PATCH, ran=HAS_MASKS):
                larger_than_captured()
        with live(PATCH, ran=False):
            assert prefix_filled(False, deterministic=True)
            report = sglang_perf_patches.activate(PATCH)
            assert report.of(PATCH).state == "gated"
            assert "deterministic" in report.of(PATCH).reason
        with live(PATCH, ran=False):
            assert prefix_filled(False, one_scale=True)
            assert "one scale" in sglang_perf_patches.activate(PATCH).of(PATCH).reason
        launches = fills()
        with live(PATCH):
            assert fills() == launches - 1, "nothing is filled in place of the buffer"
    finally:
        verify_mask_fill.WORTH = kept
    if HAS_TRIVIAL:
        with live(PATCH, ran=HAS_MASKS):
            assert prefix_filled(True), "a small buffer is filled faster"


def larger_than_captured() -> None:
    """A batch of one-node trees for which the buffer has no room is left to stock."""
    case = {**_CASE, **_ONE_NODE, "requests": [(CONTEXT - 1, ())] * REQUESTS}
    with furnished(server_args(speculative_num_draft_tokens=1), *MODULES):
        backend, _ = make(case)
        assert mask_of(backend).numel() < CONTEXT * REQUESTS
        assert bool(build(case, backend).custom_mask.all())


def fills() -> int:
    """How many fills, of whatever size, one build of a tree launches."""
    with furnished(server_args(speculative_num_draft_tokens=_CASE["draft"]), *MODULES):
        backend, _ = make(_CASE)
        with Operators() as seen:
            build(_CASE, backend)
        return sum(name.startswith("aten.fill_") for name in seen.names)


class Operators(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Which operators of torch run."""

    def __init__(self) -> None:
        """None so far."""
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def prefix_filled(trivial: bool, *, deterministic: bool = False, one_scale: bool = False) -> bool:
    """Whether building a tree writes the mask's prefix cells."""
    case = {**_CASE, **(_ONE_NODE if trivial else {}), "deterministic": deterministic}
    with furnished(server_args(speculative_num_draft_tokens=case["draft"]), *MODULES):
        backend, _ = make(case, one_scale=one_scale)
        buffer = mask_of(backend)
        buffer.zero_()
        verify_input = build(case, backend)
        assert verify_input.custom_mask.data_ptr() == buffer.data_ptr()
        filled = int(buffer[1:30].sum())
        assert filled in (0, 29)
        return bool(filled)
