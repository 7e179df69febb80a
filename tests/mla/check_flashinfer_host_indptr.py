"""A replayed FlashInfer draft does not copy its kv_indptr from the device."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

import torch
from sglang.srt import environ

import sglang_perf_patches
from sglang_perf_patches.proof.comparing import live
from sglang_perf_patches.proof.mla.flashinfer_host_indptr import EDGES, PATCH, draft
from sglang_perf_patches.sets.mla.flashinfer_host_indptr import UPSTREAM


def run() -> None:
    """Count the copies of a replayed and of an eager draft."""
    assert copies(graph=True) == 1
    with live(PATCH):
        assert copies(graph=True) == 0
    with live(PATCH, ran=False):
        assert copies(graph=False) == 1, "an eager draft is left to stock"
    if getattr(environ.envs, UPSTREAM, None) is not None:
        switched_on = mock.patch.dict(os.environ, {UPSTREAM: "1"})
        with live(PATCH, ran=False), switched_on:
            draft(EDGES[0])
            state = sglang_perf_patches.activate(PATCH).of(PATCH)
            assert (state.state, UPSTREAM in state.reason) == ("gated", True)


def copies(*, graph: bool) -> int:
    """How often preparing one draft copies a tensor with the rows of all steps."""
    case = {**EDGES[0], "graph": graph}
    stock, counted, inside = torch.Tensor.cpu, [], [False]

    def cpu(self: torch.Tensor, *more: Any) -> torch.Tensor:
        if not inside[0] and self.ndim == 2 and self.shape[0] == case["steps"]:
            counted.append(self.shape)
        kept, inside[0] = inside[0], True  # the mode asks for the method again
        try:
            return stock(self, *more)
        finally:
            inside[0] = kept

    torch.Tensor.cpu = cpu  # type: ignore[method-assign]
    try:
        draft(case)
    finally:
        torch.Tensor.cpu = stock  # type: ignore[method-assign]
    # Capture is stock's, and copies once.
    return len(counted) - (1 if graph else 0)
