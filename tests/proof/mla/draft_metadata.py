"""The TRT-LLM MLA draft prepares what its kernel reads, as stock does."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from importlib import import_module
from random import Random
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import same
from sglang_perf_patches.verify.mla.cases import draft_batch, prepare
from sglang_perf_patches.verify.mla.rig import REQUESTS, furnished, model_runner, server_args
from tests.proof.mla import some_lengths, trtllm

PATCH = "mla.draft-metadata"

MODULE, PARENT = trtllm()
HEIRS = (
    ("tokenspeed_mla_backend", "TokenspeedMLAMultiStepDraftBackend"),
    ("cutedsl_mla_backend", "CuteDslMLAMultiStepDraftBackend"),
)
_POISON = -7

Case = dict[str, Any]

EDGES: tuple[Case, ...] = (
    {"steps": 3, "page": 32, "lengths": [40, 7], "padding": 1, "graph": True, "idle": False},
    {"steps": 2, "page": 64, "lengths": [], "padding": 2, "graph": True, "idle": True},
    {"steps": 4, "page": 64, "lengths": [120, 1, 64], "padding": 0, "graph": False, "idle": False},
    {"steps": 3, "page": 32, "lengths": [33], "padding": 0, "graph": False, "idle": True},
)


def own_drafts(inputs: Inputs) -> int:
    return same(PATCH, partial(draft, of=backends()[0]), [*EDGES, *inputs(drawn)])


def inherited_drafts(_: Inputs) -> int:
    """Compare, of the backends that inherit them, the edges."""
    return sum(same(PATCH, partial(draft, of=heir), EDGES) for heir in backends()[1:])


def drawn(random: Random) -> Case:
    return {
        "steps": random.randint(2, 5),
        "page": random.choice([32, 64]),
        "lengths": some_lengths(random, 5, least=0),
        "padding": random.randint(0, 2),
        "graph": random.random() < 0.5,
        "idle": random.random() < 0.3,
    }


def backends() -> list[Any]:
    kinds = [MODULE.TRTLLMMLAMultiStepDraftBackend]
    for name, kind in HEIRS:
        with suppress(ImportError):
            kinds.append(getattr(import_module(f"sglang.srt.layers.attention.{name}"), kind))
    return kinds


def draft(case: Case, of: Any) -> dict[str, Any]:
    """Prepare one draft; everything that the steps hold for the kernel afterwards."""
    arguments = server_args(speculative_num_steps=case["steps"], page_size=case["page"])
    fp8 = of.__name__.startswith("Tokenspeed")  # it supports no other
    dtype = torch.float8_e4m3fn if fp8 else torch.bfloat16
    runner = model_runner(arguments, mla=True, seed=case["page"], kv_cache_dtype=dtype)
    with furnished(arguments, MODULE.__name__, PARENT.__name__, of.__module__):
        backend = of(runner, 1, case["steps"])
        lengths = case["lengths"]
        if not case["graph"]:
            lengths = lengths or [1]  # stock prepares no eager idle batch
        batch = draft_batch(runner, lengths, case["padding"] if case["graph"] else 0)
        if case["idle"]:
            batch.forward_mode = ForwardMode.IDLE
        if not case["graph"]:
            backend.init_forward_metadata(batch)
            return {
                "metadata": [vars(step.forward_decode_metadata) for step in backend.attn_backends],
                "batch": vars(batch.decode_trtllm_mla_metadata),
            }
        bs = batch.batch_size
        if bs == 0:
            return {}
        backend.init_cuda_graph_state(REQUESTS, REQUESTS)
        for captured in range(1, bs + 1):
            prepare(backend, draft_batch(runner, [1] * captured), capture=True)
        for step in backend.attn_backends:
            step.decode_cuda_graph_kv_indices.fill_(_POISON)
        prepare(backend, batch)
        held = [step.decode_cuda_graph_metadata[bs] for step in backend.attn_backends]
        return {"metadata": [vars(metadata) for metadata in held]}


CHECKS = {"TRT-LLM MLA": own_drafts, "its heirs": inherited_drafts}
