"""The Triton verify attends as on stock, with whatever the mask's prefix cells hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import strategies as st
from liveness import live
from rooms import CONTEXT, REQUESTS, Room, furnished, model_runner, server_args
from sglang.srt.layers.attention import triton_backend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative import eagle_utils, eagle_worker_v2
from toggling import compare

import sglang_perf_patches
from sglang_perf_patches.sets.mla import verify_mask_fill

try:
    from sglang.srt.speculative import eagle_worker_common
except ImportError:  # up to 0.5.15.post1 the worker builds the tree itself
    eagle_worker_common = None

PATCH = "mla.verify-mask-fill"
HEADS, KV_HEADS, DIM = 4, 2, 16
CAPTURED = 4
HAS_MASKS = hasattr(triton_backend.TritonAttnBackend, "verify_mask")
HAS_TRIVIAL = hasattr(eagle_worker_v2.EAGLEWorkerV2, "_build_trivial_verify_input")


def tree_kernel(
    _parents: Any,
    nodes: torch.Tensor,
    seq_lens: torch.Tensor,
    mask: torch.Tensor,
    positions: torch.Tensor,
    *rest: Any,
) -> None:
    """In place of the CUDA kernel: writes the tree cells, all of them, by address.

    `nodes` holds here the parent of each drafted token, (requests, draft - 1).
    """
    draft, mode = rest[-2], rest[-1]
    full = mode == eagle_utils.TreeMaskMode.FULL_MASK
    cells = torch.empty(0, dtype=mask.dtype).set_(mask.untyped_storage())
    at = mask.storage_offset()
    for request, length in enumerate(seq_lens.tolist()):
        prefix = length if full else 0
        for token in range(draft):
            row = torch.zeros(draft, dtype=mask.dtype)
            node = token
            while node:
                row[node] = 1
                node = int(nodes[request, node - 1])
            row[0] = 1
            cells[at + prefix : at + prefix + draft] = row
            at += prefix + draft
        positions[request * draft : (request + 1) * draft] = length


for _name in ("sgl_build_tree_kernel_efficient", "build_tree_kernel_efficient_func"):
    setattr(eagle_utils, _name, tree_kernel)

CASES = st.integers(1, 5).flatmap(
    lambda draft: st.fixed_dictionaries(
        {
            "draft": st.just(draft),
            "requests": st.lists(
                st.tuples(
                    st.integers(1, 40),
                    st.tuples(*(st.integers(0, node) for node in range(draft - 1))),
                ),
                min_size=1,
                max_size=CAPTURED + 1,
            ),
            "graph": st.booleans(),
            "mla": st.booleans(),
            "window": st.sampled_from([None, None, 6]),
            "trivial": st.booleans(),
            "seed": st.integers(0, 3),
        }
    )
)


def make(case: dict[str, Any], **more: Any) -> tuple[Any, Any, Room]:
    """A Triton backend whose mask buffer, if any, holds noise."""
    arguments = server_args(speculative_num_draft_tokens=case["draft"], **more)
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
    backend = triton_backend.TritonAttnBackend(runner)
    backend.init_cuda_graph_state(CAPTURED, CAPTURED * max(case["draft"], 2))
    buffer = mask_of(backend)
    if buffer is not None:
        buffer.copy_(torch.randint(0, 2, buffer.shape, generator=noise))
    return backend, runner, arguments


def mask_of(backend: Any) -> Any:
    """The backend's own mask buffer."""
    if HAS_MASKS:
        return backend._verify_mask.buffer if backend._verify_mask else None
    return backend.cuda_graph_custom_mask


def build(case: dict[str, Any], backend: Any) -> Any:
    """Build the tree as the release's worker does."""
    lengths = [length for length, _ in case["requests"]]
    count, draft = len(lengths), case["draft"]
    nodes = torch.tensor([parents for _, parents in case["requests"]], dtype=torch.int64)
    nodes = nodes.reshape(count, draft - 1)
    seq_lens = torch.tensor(lengths, dtype=torch.int64)
    bonus = torch.arange(count)
    drafted = torch.zeros((count, draft - 1), dtype=torch.int64)
    target = Room(model_runner=Room(attn_backend=backend))
    batch = Room(
        forward_mode=ForwardMode.DECODE,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens.clone(),
        seq_lens_sum=sum(lengths),
        spec_info=Room(bonus_tokens=bonus),
    )
    if case["trivial"] and draft == 1 and HAS_TRIVIAL:
        worker = Room(topk=1, device="cpu", _target_worker=target, target_worker=target)
        return eagle_worker_v2.EAGLEWorkerV2._build_trivial_verify_input(worker, batch)
    leading = (bonus, [], nodes, drafted, seq_lens, sum(lengths), 2, 3, draft)
    mode = eagle_utils.TreeMaskMode.FULL_MASK
    if HAS_MASKS:
        return eagle_worker_common.build_eagle_verify_input(
            batch,
            batch.spec_info,
            [],
            nodes,
            drafted,
            **options(
                eagle_worker_common.build_eagle_verify_input,
                draft_probs=None,
                target_worker=target,
                topk=2,
                num_steps=3,
                num_draft_tokens=draft,
                tree_mask_mode=mode,
                device="cpu",
            ),
        )
    mask, positions = backend.get_verify_buffers_to_fill_after_draft()
    if mask is not None and count > CAPTURED:
        mask = None  # stock would write past it
    made = eagle_utils.build_tree_kernel_efficient(*leading, mode, mask, positions)
    return SimpleNamespace(
        custom_mask=made[0], rest=made[1:], draft_token_num=draft, num_tokens_per_req=draft
    )


def options(function: Any, **given: Any) -> dict[str, Any]:
    """Those of the options that the release's function takes."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    names += function.__code__.co_varnames[
        function.__code__.co_argcount : function.__code__.co_argcount
        + function.__code__.co_kwonlyargcount
    ]
    return {name: value for name, value in given.items() if name in names}


def verify(case: dict[str, Any]) -> dict[str, Any]:
    """Build a tree and attend with it; the mask's tree cells and the output."""
    names = [triton_backend.__name__, eagle_worker_v2.__name__]
    with furnished(server_args(speculative_num_draft_tokens=case["draft"]), *names):
        backend, runner, _ = make(case)
        verify_input = build(case, backend)
        lengths = [length for length, _ in case["requests"]]
        return {
            "cells": tree_cells(verify_input.custom_mask, lengths, case["draft"]),
            "numel": verify_input.custom_mask.numel(),
            "output": attend(case, backend, runner, verify_input, lengths),
        }


def tree_cells(mask: torch.Tensor, lengths: list[int], draft: int) -> list[torch.Tensor]:
    """The draft x draft cells of each request."""
    found, at = [], 0
    for length in lengths:
        rows = mask[at : at + draft * (length + draft)].reshape(draft, length + draft)
        found.append(rows[:, length:].to(torch.uint8).clone())
        at += rows.numel()
    return found


def attend(
    case: dict[str, Any], backend: Any, runner: Any, verify_input: Any, lengths: list[int]
) -> torch.Tensor:
    """Prepare the verify, in a replayed graph's way or eagerly, and run its attention."""
    draft, count = case["draft"], len(lengths)
    graph = case["graph"] and count <= CAPTURED
    padding = CAPTURED - count if graph else 0
    bs = count + padding
    seq_lens = torch.tensor(lengths + [1] * padding, dtype=torch.int64)
    spec_info = verify_input
    batch = Room(
        batch_size=bs,
        forward_mode=ForwardMode.TARGET_VERIFY,
        req_pool_indices=torch.tensor([*range(1, count + 1), *[0] * padding]),
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens.clone(),
        seq_lens_sum=int(seq_lens.sum()),
        spec_info=spec_info,
        out_cache_loc=torch.zeros(bs * draft, dtype=torch.int64),
        req_to_token_pool=runner.req_to_token_pool,
        token_to_kv_pool=runner.token_to_kv_pool,
        extend_num_tokens=bs * draft,
        kv_loc_plan=None,
    )
    if graph:
        prepare_graph(backend, batch, bs, draft)
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


def prepare_graph(backend: Any, batch: Any, bs: int, draft: int) -> None:
    """Capture and replay the metadata of a graph of `bs` requests."""
    if hasattr(backend, "init_forward_metadata_out_graph") and not hasattr(
        type(backend), "init_forward_metadata_replay_cuda_graph"
    ):
        backend.init_forward_metadata_out_graph(batch, in_capture=True)
        backend.init_forward_metadata_out_graph(batch)
        if hasattr(backend, "init_forward_metadata_in_graph"):
            backend.init_forward_metadata_in_graph(batch)
        return
    backend.init_forward_metadata_capture_cuda_graph(
        bs,
        bs * draft,
        batch.req_pool_indices,
        batch.seq_lens,
        None,
        batch.forward_mode,
        batch.spec_info,
    )
    backend.init_forward_metadata_replay_cuda_graph(
        bs,
        batch.req_pool_indices,
        batch.seq_lens,
        batch.seq_lens_sum,
        None,
        batch.forward_mode,
        batch.spec_info,
        batch.seq_lens_cpu,
    )


def run() -> None:
    """Compare; see that the prefix is not filled; see that each exception is left to stock."""
    kept, verify_mask_fill.WORTH = verify_mask_fill.WORTH, 0
    try:
        compare(PATCH, verify, CASES)
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
    with furnished(arguments, triton_backend.__name__, eagle_worker_v2.__name__):
        backend, _, _ = make(case, **more)
        buffer = mask_of(backend)
        buffer.zero_()
        verify_input = build(case, backend)
        assert verify_input.custom_mask.data_ptr() == buffer.data_ptr()
        filled = int(buffer[1:30].sum())
        assert filled in (0, 29)
        return bool(filled)
