"""The Triton verify attends as on stock, whatever the mask's prefix cells contain."""

from __future__ import annotations

from importlib import import_module
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.attention import triton_backend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative import eagle_utils, eagle_worker_v2

from ...sets.mla import verify_mask_fill as patch
from .. import Inputs
from ..comparing import same
from . import trees
from .batches import prepare_backend
from .rig import CONTEXT, REQUESTS, Room, furnished, model_runner, server_args

PATCH = "mla.verify-mask-fill"
HEADS, KV_HEADS, DIM = 4, 2, 16
CAPTURED = 4
MODULES = (triton_backend.__name__, eagle_worker_v2.__name__)
HAS_MASKS = hasattr(triton_backend.TritonAttnBackend, "verify_mask")
HAS_TRIVIAL = hasattr(eagle_worker_v2.EAGLEWorkerV2, "_build_trivial_verify_input")

trees.lend()

Case = dict[str, Any]

_PLAIN: Case = {
    "draft": 4,
    "requests": [(30, (0, 1, 2)), (9, (0, 0, 1))],
    "graph": True,
    "mla": True,
    "window": None,
    "trivial": False,
    "deterministic": False,
    "seed": 0,
}
EDGES: tuple[Case, ...] = (
    _PLAIN,
    {**_PLAIN, "graph": False, "mla": False},
    {**_PLAIN, "window": 6, "mla": False, "seed": 1},
    {**_PLAIN, "requests": [(12, (0, 0, 0))] * (CAPTURED + 1)},
    {**_PLAIN, "draft": 1, "requests": [(30, ()), (9, ())], "trivial": True},
    {**_PLAIN, "draft": 1, "requests": [(3, ())], "trivial": True, "graph": False},
    {**_PLAIN, "deterministic": True},
)


def compare(inputs: Inputs) -> int:
    """Compare trees, one-node trees and their attention, however large the mask."""
    kept, patch.WORTH = patch.WORTH, 0
    try:
        return same(PATCH, verify, [*EDGES, *inputs(drawn)])
    finally:
        patch.WORTH = kept


def drawn(random: Random) -> Case:
    """A batch to verify."""
    draft = random.randint(1, 5)
    return {
        "draft": draft,
        "requests": trees.some_requests(random, CAPTURED + 1, draft),
        "graph": random.random() < 0.5,
        "mla": random.random() < 0.5,
        "window": random.choice([None, None, 6]),
        "trivial": random.random() < 0.5,
        "deterministic": random.random() < 0.2,
        "seed": random.randint(0, 3),
    }


def make(case: Case, *, one_scale: bool = False) -> tuple[Any, Room]:
    """A Triton backend whose mask buffer, if any, holds noise, and its runner."""
    arguments = server_args(speculative_num_draft_tokens=case["draft"])
    tokens = REQUESTS * CONTEXT + 1
    noise = torch.Generator().manual_seed(case["seed"])
    heads = 1 if case["mla"] else KV_HEADS
    keys = torch.randn(tokens, heads, DIM, generator=noise)
    values = keys if case["mla"] else torch.randn(tokens, heads, DIM, generator=noise)
    runner = model_runner(
        arguments,
        mla=case["mla"],
        sliding_window_size=case["window"],
        token_to_kv_pool=Room(
            start_layer=0,
            get_key_buffer=lambda _: keys,
            get_value_buffer=lambda _: values,
            get_v_head_dim=lambda: DIM,
            translate_loc_from_full_to_swa=lambda locs: locs,
        ),
    )
    runner.model_config.head_dim = runner.model_config.v_head_dim = DIM
    runner.model_config.quantization = "w8a8_fp8" if one_scale else None
    backend = triton_backend.TritonAttnBackend(runner)
    # sglang may derive this itself; then it is not in the server's arguments.
    backend.enable_deterministic = case["deterministic"]
    backend.init_cuda_graph_state(CAPTURED, CAPTURED * max(case["draft"], 2))
    buffer = mask_of(backend)
    if buffer is not None:
        buffer.copy_(torch.randint(0, 2, buffer.shape, generator=noise))
    return backend, runner


def mask_of(backend: Any) -> Any:
    """The backend's own mask buffer."""
    if HAS_MASKS:
        return backend._verify_mask.buffer if backend._verify_mask else None
    return backend.cuda_graph_custom_mask


def build(case: Case, backend: Any) -> Any:
    """Build the tree as the release's worker does."""
    lengths = [length for length, _ in case["requests"]]
    count, draft = len(lengths), case["draft"]
    nodes = trees.parents(case["requests"], draft)
    seq_lens = torch.tensor(lengths, dtype=torch.int64)
    target = Room(model_runner=Room(attn_backend=backend))
    batch = Room(
        forward_mode=ForwardMode.DECODE,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens.clone(),
        seq_lens_sum=sum(lengths),
        spec_info=Room(bonus_tokens=torch.arange(count)),
    )
    if case["trivial"] and draft == 1 and HAS_TRIVIAL:
        worker = Room(topk=1, device="cpu", _target_worker=target, target_worker=target)
        return eagle_worker_v2.EAGLEWorkerV2._build_trivial_verify_input(worker, batch)
    if HAS_MASKS:
        common = import_module("sglang.srt.speculative.eagle_worker_common")
        return common.build_eagle_verify_input(
            batch,
            batch.spec_info,
            [],
            nodes,
            torch.zeros((count, draft - 1), dtype=torch.int64),
            **_options(
                common.build_eagle_verify_input,
                draft_probs=None,
                target_worker=target,
                topk=2,
                num_steps=3,
                num_draft_tokens=draft,
                tree_mask_mode=eagle_utils.TreeMaskMode.FULL_MASK,
                device="cpu",
            ),
        )
    mask, positions = backend.get_verify_buffers_to_fill_after_draft()
    if mask is not None and count > CAPTURED:
        mask = None  # stock would write past it
    made = trees.build(seq_lens, nodes, draft, mask, positions)
    return SimpleNamespace(
        custom_mask=made[0], rest=made[1:], draft_token_num=draft, num_tokens_per_req=draft
    )


def _options(function: Any, **given: Any) -> dict[str, Any]:
    """Those of the options that the release's function takes."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {name: value for name, value in given.items() if name in names}


def verify(case: Case) -> dict[str, Any]:
    """Build a tree and attend with it; the mask's tree cells and the output."""
    with furnished(server_args(speculative_num_draft_tokens=case["draft"]), *MODULES):
        backend, runner = make(case)
        verify_input = build(case, backend)
        lengths = [length for length, _ in case["requests"]]
        return {
            "cells": trees.cells(verify_input.custom_mask, lengths, case["draft"]),
            "numel": verify_input.custom_mask.numel(),
            "output": _attend(case, backend, runner, verify_input, lengths),
        }


def _attend(
    case: Case, backend: Any, runner: Room, verify_input: Any, lengths: list[int]
) -> torch.Tensor:
    """Prepare the verify, in a replayed graph's way or eagerly, and run its attention."""
    draft, count = case["draft"], len(lengths)
    graph = case["graph"] and count <= CAPTURED
    padding = CAPTURED - count if graph else 0
    bs = count + padding
    seq_lens = torch.tensor(lengths + [1] * padding, dtype=torch.int64)
    batch = Room(
        batch_size=bs,
        forward_mode=ForwardMode.TARGET_VERIFY,
        req_pool_indices=torch.tensor([*range(1, count + 1), *[0] * padding]),
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens.clone(),
        seq_lens_sum=int(seq_lens.sum()),
        spec_info=verify_input,
        positions=torch.zeros(bs * draft),
        out_cache_loc=torch.zeros(bs * draft, dtype=torch.int64),
        req_to_token_pool=runner.req_to_token_pool,
        token_to_kv_pool=runner.token_to_kv_pool,
        extend_num_tokens=bs * draft,
    )
    if graph:
        prepare_backend(backend, batch, capture=True)
        prepare_backend(backend, batch)
    else:
        backend.init_forward_metadata(batch)
    noise = torch.Generator().manual_seed(case["seed"] + 100)
    heads = 1 if case["mla"] else KV_HEADS
    query = torch.randn(bs * draft, HEADS * DIM, generator=noise)
    key = torch.randn(bs * draft, heads, DIM, generator=noise)
    value = key if case["mla"] else torch.randn(bs * draft, heads, DIM, generator=noise)
    layer = Room(
        tp_q_head_num=HEADS,
        tp_k_head_num=heads,
        tp_v_head_num=heads,
        qk_head_dim=DIM,
        head_dim=DIM,
        v_head_dim=DIM,
        scaling=0.25,
        logit_capping_method="tanh",
        logit_cap=0.0,
        layer_id=0,
        sliding_window_size=case["window"] if case["window"] else -1,
        is_cross_attention=False,
        xai_temperature_len=-1,
    )
    output: torch.Tensor = backend.forward_extend(
        query, key, value, layer, batch, save_kv_cache=False
    )
    return output[: count * draft].clone()
