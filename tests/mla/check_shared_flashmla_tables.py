"""The steps of a FlashMLA draft are planned once, on one block table."""

from __future__ import annotations

import sglang_perf_patches
from sglang_perf_patches.proof.comparing import live
from sglang_perf_patches.proof.mla.batches import draft_batch, prepare
from sglang_perf_patches.proof.mla.rig import furnished
from sglang_perf_patches.proof.mla.shared_flashmla_tables import (
    PATCH,
    arguments,
    flashinfer_mla_backend,
    lent,
    make,
    module,
)


def run() -> None:
    """Count plans and tables."""
    assert planned() == (2, 2)
    with live(PATCH):
        assert planned() == (1, 1)
        assert planned(steps=5) == (1, 1)
    with live(PATCH, ran=False):
        assert planned(dcp_size=2) == (2, 2)
        assert sglang_perf_patches.activate(PATCH).of(PATCH).state == "gated"


def planned(steps: int = 3, **options: object) -> tuple[int, int]:
    """How many plans one replay makes, and how many block tables the draft holds."""
    given = arguments(steps)
    vars(given).update(options)
    names = (module.__name__, flashinfer_mla_backend.__name__)
    with furnished(given, *names), lent() as calls:
        backend, runner = make(steps)
        prepare(backend, draft_batch(runner, [1, 1], steps=steps), capture=True)
        calls.clear()
        prepare(backend, draft_batch(runner, [40, 7], steps=steps))
        tables = {step.cuda_graph_kv_indices.data_ptr() for step in backend.attn_backends}
        return len(calls), len(tables)
