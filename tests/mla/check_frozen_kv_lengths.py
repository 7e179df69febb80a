"""A draft asks the GPU for no sum, and what is left to stock."""

from typing import Any
from unittest import mock

import torch

from sglang_perf_patches.verify.comparing import live
from sglang_perf_patches.verify.mla.rig import CONTEXT
from tests.proof.mla.frozen_kv_lengths import PATCH, step
from tests.proof.mla.sync_opt_out import DRAFT

_CASE = {"graph": True, "lengths": [40, 7], "spare": DRAFT, "seed": 1}


def sums(case: dict[str, Any] | None = None, **changes: Any) -> int:
    """How many tensors are summed while one step drafts."""
    with mock.patch.object(torch, "sum", side_effect=torch.sum) as called:
        step(case or _CASE, **changes)
    return called.call_count


def stock_waits() -> None:
    assert sums() == 1


def no_wait() -> None:
    with live(PATCH):
        assert sums() == 0


def left_to_stock() -> None:
    """Lengths that the host has, and memory beyond the graph's mask."""
    with live(PATCH, ran=False):
        assert sums(seq_lens_cpu=torch.tensor(_CASE["lengths"])) == 1
        assert sums({**_CASE, "lengths": [CONTEXT - 2 * DRAFT], "spare": DRAFT + 1}) == 1
        assert sums(reqs=[]) == 1


CHECKS = {"stock waits": stock_waits, "no wait": no_wait, "left to stock": left_to_stock}
