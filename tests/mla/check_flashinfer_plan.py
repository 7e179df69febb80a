"""Whose numbers FlashInfer MLA is planned with."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_perf_patches.proof.comparing import live
from sglang_perf_patches.proof.mla.flashinfer_plan import PATCH, plans
from sglang_perf_patches.sets.mla import flashinfer_plan


def run() -> None:
    """The host's for verify and draft-extend where it has lengths; stock's else."""
    case = {"draft": 3, "lengths": [40, 7], "padding": 1}
    stock, asked = flashinfer_plan._HostPlanned, []

    def counted(wrapper: Any, host: tuple[torch.Tensor, ...]) -> Any:
        asked.append([values.tolist() for values in host])
        return stock(wrapper, host)

    flashinfer_plan._HostPlanned = counted
    verifying, extending = ForwardMode.TARGET_VERIFY, ForwardMode.DRAFT_EXTEND_V2
    try:
        with live(PATCH):
            for host in (True, False):
                for mode in (verifying, extending, ForwardMode.DECODE, ForwardMode.EXTEND):
                    for graph in (True, False):
                        decoding = mode is ForwardMode.DECODE
                        plans({**case, "host": host or decoding, "mode": mode, "graph": graph})
    finally:
        flashinfer_plan._HostPlanned = stock
    verified = [[0, 3, 6, 9], [0, 43, 53, 57], [43, 10, 4]]  # with a row of padding
    extended = [[0, 3, 6], [0, 43, 53], [43, 10]]
    served = [verified, verified, extended, extended]  # an extend is eager either way
    assert asked == served, asked
