"""The FlashInfer draft is planned with stock's numbers."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from .. import Different, Inputs
from ..comparing import same
from ..lent import Wrapper
from . import wheels
from .batches import draft_batch, prepare, some_lengths
from .rig import furnished, model_runner, server_args

PATCH = "mla.flashinfer-host-indptr"
CAPTURED = 6

MODULE = wheels.flashinfer()

Case = dict[str, Any]

_PLAIN: Case = {
    "steps": 3,
    "topk": 2,
    "page": 1,
    "lengths": [40, 7],
    "padding": 1,
    "graph": True,
    "idle": False,
    "host": True,
    "parallel": False,
}
EDGES: tuple[Case, ...] = (
    _PLAIN,
    {**_PLAIN, "graph": False},
    {**_PLAIN, "topk": 1, "steps": 5, "page": 4},
    {**_PLAIN, "topk": 4, "lengths": [80] * CAPTURED, "padding": 0},
    {**_PLAIN, "lengths": [], "padding": 2, "idle": True},
    {**_PLAIN, "host": False},
    {**_PLAIN, "parallel": True},
)


def compare(inputs: Inputs) -> int:
    """Compare drafts, replayed and eager, idle ones and ones without host lengths too."""
    return same(PATCH, draft, [*EDGES, *inputs(drawn)])


def drawn(random: Random) -> Case:
    """A draft."""
    return {
        "steps": random.randint(2, 5),
        "topk": random.randint(1, 4),
        "page": random.choice([1, 4]),
        "lengths": some_lengths(random, CAPTURED, least=0, room=48),
        "padding": random.randint(0, 2),
        "graph": random.random() < 0.6,
        "idle": random.random() < 0.2,
        "host": random.random() < 0.8,
        "parallel": random.random() < 0.2,
    }


def draft(case: Case) -> dict[str, Any]:
    """Prepare one draft; every plan of every step, and what the kernels read."""
    steps, topk = case["steps"], case["topk"]
    arguments = server_args(
        speculative_num_steps=steps, speculative_eagle_topk=topk, page_size=case["page"]
    )
    runner = model_runner(arguments)
    with furnished(arguments, MODULE.__name__):
        backend = MODULE.FlashInferMultiStepDraftBackend(runner, topk, steps)
        lengths = case["lengths"]
        if not case["graph"]:
            lengths = lengths or [1]  # stock prepares no eager idle batch
        padded = case["graph"] or case["parallel"]
        padding = min(case["padding"], CAPTURED - len(lengths)) if padded else 0
        batch = draft_batch(runner, lengths, padding, topk=topk, steps=steps)
        if case["parallel"]:  # data parallelism pads the draft's input too
            batch._original_batch_size = len(lengths)
            batch.spec_info.topk_p = torch.zeros(batch.batch_size, topk, device=runner.device)
        if case["idle"]:
            batch.forward_mode = ForwardMode.IDLE
        if not case["host"]:
            batch.seq_lens_cpu = None
        found: dict[str, Any] = {}
        if case["graph"] and batch.batch_size:
            # Older releases omit topk from the size of their buffer.
            backend.init_cuda_graph_state(CAPTURED * topk, CAPTURED * topk)
            captured = draft_batch(
                runner, [1] * batch.batch_size, topk=topk, steps=steps, capture=True
            )
            prepare(backend, captured, capture=True)
            for wrapper in wrappers(backend):
                wrapper.plans.clear()
            backend.cuda_graph_kv_indices.fill_(-7)
            prepare(backend, batch)
            found["indices"] = backend.cuda_graph_kv_indices
        elif batch.batch_size:
            backend.init_forward_metadata(batch)
        found["plans"] = [list(wrapper.plans) for wrapper in wrappers(backend)]
        found["kv_indptr"] = backend.kv_indptr
        _left_as_it_was(backend, batch)
        return found


def wrappers(backend: Any) -> list[Wrapper]:
    """Every wrapper that a step of the draft may plan."""
    found: list[Wrapper] = []
    for step in backend.attn_backends:
        found += step.decode_wrappers
        for kept in step.decode_cuda_graph_metadata.values():
            found += kept if isinstance(kept, list) else kept.decode_wrappers
    return found


def _left_as_it_was(backend: Any, batch: Any) -> None:
    held = batch.spec_info.kv_indptr
    if type(backend.kv_indptr) is not torch.Tensor or type(held) not in (torch.Tensor, type(None)):
        raise Different(f"{PATCH}: a kv_indptr is no ordinary tensor afterwards")
    if MODULE.global_override_indptr_cpu is not None:
        raise Different(f"{PATCH}: FlashInfer's own override is left set")
