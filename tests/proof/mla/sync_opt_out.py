"""Lengths that no backend of a step needs on the host stay on the GPU; kernels read the same."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from sglang.srt.layers.attention import triton_backend
from sglang.srt.managers import overlap_utils
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative import eagle_info, eagle_utils, spec_info

from sglang_perf_patches.verify.comparing import require, same
from sglang_perf_patches.verify.mla import cases
from sglang_perf_patches.verify.mla.cases import Batch, requests_of, verify_input
from sglang_perf_patches.verify.mla.rig import furnished, model_runner, server_args
from sglang_perf_patches.verify.stock import NoneByDefault
from tests.proof.mla import hybrid, some_lengths, trtllm

PATCH = "mla.sync-opt-out"
CAPTURED = 4
DRAFT = 4
KINDS = ("triton", "trtllm", "flashinfer+triton", "flashinfer+trtllm")
FORWARD_MODES = {
    "verify": ForwardMode.TARGET_VERIFY,
    "extend": ForwardMode.DRAFT_EXTEND_V2,
    "draft": ForwardMode.DECODE,
}
MODES = tuple(FORWARD_MODES)

TRTLLM, FLASHINFER = trtllm()
hybrid_attn_backend = hybrid()
MODULES = tuple(
    module.__name__
    for module in (FLASHINFER, TRTLLM, triton_backend, hybrid_attn_backend, overlap_utils)
)

Case = dict[str, Any]

EDGES: tuple[Case, ...] = tuple(
    {"kind": kind, "mode": mode, "graph": graph, "lengths": lengths, "seed": 1}
    for kind in KINDS
    for mode in MODES
    for graph in (True, False)
    # The second case has the captured size: a mask for the longest context does not fit.
    for lengths in ([40, 7], [40, 7, 90, 1])
)


def drawn(random: Random) -> Case:
    return {
        "kind": random.choice(KINDS),
        "mode": random.choice(MODES),
        "graph": random.random() < 0.5,
        "lengths": some_lengths(random, CAPTURED),
        "seed": random.randint(0, 3),
    }


def arguments(**settings: Any) -> NoneByDefault:
    """A server's, with the graphs that are on by default."""
    return server_args(
        **{
            "page_size": 32,
            "disable_piecewise_cuda_graph": False,
            "speculative_attention_mode": "prefill",
            "get_model_config": lambda: NoneByDefault(hf_text_config=NoneByDefault()),
            **settings,
        }
    )


def backend(kind: str, runner: NoneByDefault) -> Any:
    """A backend of the release; ``a+b`` prefills with a and decodes with b."""
    if "+" in kind:
        parts = [backend(part, runner) for part in kind.split("+")]
        return hybrid_attn_backend.HybridAttnBackend(runner, *parts)
    return {
        "triton": triton_backend.TritonAttnBackend,
        "trtllm": TRTLLM.TRTLLMMLABackend,
        "flashinfer": FLASHINFER.FlashInferMLAAttnBackend,
    }[kind](runner)


def drafting(kind: str, runner: NoneByDefault) -> Any:
    return {
        "triton": triton_backend.TritonMultiStepDraftBackend,
        "trtllm": TRTLLM.TRTLLMMLAMultiStepDraftBackend,
        "flashinfer": FLASHINFER.FlashInferMLAMultiStepDraftBackend,
    }[kind](runner, 1, 3)


def step(case: Case) -> dict[str, Any]:
    served = arguments(speculative_attention_mode="decode")
    kind, decoding = case["kind"], case["kind"].rpartition("+")[2]
    with furnished(served, *MODULES):
        runner = model_runner(served, mla=True, seed=case["seed"])
        of_draft = model_runner(served, mla=True, seed=case["seed"], is_draft_worker=True)
        target = backend(kind, runner)
        draft, extend = drafting(decoding, of_draft), backend(decoding, of_draft)
        host = overlap_utils.decide_needs_cpu_seq_lens(served, (target, draft, extend))
        batch = published(runner, case["lengths"], host)
        acting = {"verify": target, "extend": extend, "draft": draft}[case["mode"]]
        acting.init_cuda_graph_state(CAPTURED, CAPTURED * DRAFT)
        forward = forward_batch(runner, batch, case)
        mask = {}
        if case["mode"] == "verify":
            mask = build(case, target, batch, forward)
        prepare(acting, forward, is_replayed=case["graph"])
        steps = getattr(acting, "attn_backends", [acting])
        return {"mask": mask, "read": [read(each, forward, case) for each in steps]}


def prepare(acting: Any, forward: Batch, *, is_replayed: bool) -> None:
    """Prepare a backend's metadata as stock does, for a captured graph or an eager forward."""
    if not is_replayed:
        acting.init_forward_metadata(forward)
        return
    captured = Batch(**vars(forward))  # a capture knows its lengths
    captured.seq_lens_cpu = forward.seq_lens.clone()
    captured.seq_lens_sum = int(forward.seq_lens.sum())
    acting.init_forward_metadata_out_graph(captured, in_capture=True)
    acting.init_forward_metadata_out_graph(forward)


def published(runner: NoneByDefault, lengths: list[int], host: bool) -> NoneByDefault:
    """A batch whose lengths stock's relay has brought over from the last step."""
    algorithm = spec_info.SpeculativeAlgorithm.EAGLE
    future = overlap_utils.FutureMap(
        torch.device("cpu"), algorithm, runner.req_to_token_pool, needs_cpu_seq_lens=host
    )
    requests = requests_of(runner, len(lengths))
    future.publish(requests, torch.tensor(lengths))
    batch = NoneByDefault(
        spec_info=NoneByDefault(future_indices=requests),
        req_pool_indices=requests,
        req_pool_indices_cpu=requests,
        seq_lens=torch.tensor(lengths) - 1,
        seq_lens_cpu=torch.tensor(lengths) - 1,
        seq_lens_sum=0,
    )
    resolve = getattr(future, "resolve_seq_lens_cpu", None) or future.resolve_seq_lens
    resolve(batch)
    arrived, on_host = batch.seq_lens.tolist(), batch.seq_lens_cpu
    on_host = None if on_host is None else on_host.tolist()
    require(arrived == lengths, f"{PATCH}: the relay brought {arrived}, not {lengths}")
    wanted = lengths if host else None
    require(on_host == wanted, f"{PATCH}: the host has {on_host}, not {wanted}")
    return batch


def forward_batch(runner: NoneByDefault, batch: NoneByDefault, case: Case) -> Batch:
    """The forward batch of one part of a step, as stock derives it from the scheduler's."""
    count = batch.seq_lens.numel()
    lengths, host, total = batch.seq_lens, batch.seq_lens_cpu, batch.seq_lens_sum
    drafted: Any = eagle_info.EagleDraftInput(topk_p=torch.zeros(count, 1))
    drafted.num_tokens_per_req = DRAFT
    drafted.extend_seq_lens_tensor = torch.full((count,), DRAFT, dtype=torch.int32)
    drafted.num_correct_drafts = torch.zeros(count, dtype=torch.int32)
    drafted.num_accept_tokens = torch.ones(count, dtype=torch.int32)
    if case["mode"] == "extend":
        lengths = lengths + DRAFT
        if host is not None:
            host = host + DRAFT
            total = int(host.sum())
    positions = batch.seq_lens
    if case["mode"] != "draft":
        positions = torch.zeros(count * DRAFT, dtype=torch.int64)
    return cases.forward_batch(
        runner,
        FORWARD_MODES[case["mode"]],
        batch.req_pool_indices,
        lengths,
        seq_lens_cpu=host,
        seq_lens_sum=total,
        extend_seq_lens=torch.full((count,), DRAFT, dtype=torch.int32),
        extend_seq_lens_cpu=[DRAFT] * count,
        extend_prefix_lens=batch.seq_lens.to(torch.int32),
        positions=positions,
        spec_info=drafted,
    )


def build(case: Case, target: Any, batch: NoneByDefault, forward: Batch) -> dict[str, Any]:
    """Build the verify's trees by the release's own worker code; the cells that are read."""
    count = batch.seq_lens.numel()
    parents = torch.arange(DRAFT - 1).repeat(count, 1)
    mask, positions = target.get_verify_buffers_to_fill_after_draft()
    total = batch.seq_lens_sum
    if total is None:  # as the workers do
        total = 0 if mask is not None else count * target.max_context_len
    tree = eagle_utils.build_tree_kernel_efficient(
        torch.arange(count),
        [],
        parents,
        torch.zeros((count, DRAFT - 1), dtype=torch.int64),
        batch.seq_lens,
        total,
        2,
        3,
        DRAFT,
        eagle_utils.TreeMaskMode.FULL_MASK,
        mask,
        positions,
    )
    verify = verify_input(DRAFT)
    verify.custom_mask = tree[0]
    forward.spec_info = verify
    cells = []
    if case["kind"].endswith("triton"):
        cells = cells_of(tree[0], batch.seq_lens.tolist())
    return {"cells": cells, "rest": [value.clone() for value in tree[1:]]}


def read(acting: Any, forward: Batch, case: Case) -> dict[str, Any]:
    if isinstance(acting, hybrid_attn_backend.HybridAttnBackend):
        acting = acting._select_backend(forward.forward_mode)
    bs = forward.batch_size
    if isinstance(acting, TRTLLM.TRTLLMMLABackend):
        held = acting.decode_cuda_graph_metadata if case["graph"] else None
        metadata = vars(held[bs] if held is not None else acting.forward_decode_metadata)
        return {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in metadata.items()
        }
    metadata = acting.forward_metadata
    indptr = metadata.kv_indptr[: bs + 1].clone()
    fields = {
        "kv_indptr": indptr,
        "kv_indices": metadata.kv_indices.flatten()[: int(indptr[-1])].clone(),
        "max_extend_len": metadata.max_extend_len,
    }
    if metadata.qo_indptr is not None:
        fields["qo_indptr"] = metadata.qo_indptr[: bs + 1].clone()
    if metadata.num_kv_splits is not None:
        fields["num_kv_splits"] = metadata.num_kv_splits[:bs].clone()
    if metadata.mask_indptr is not None:
        fields["mask_indptr"] = metadata.mask_indptr[: bs + 1].clone()
        fields["cells"] = cells_of(metadata.custom_mask, case["lengths"])
    return fields


def cells_of(mask: torch.Tensor, lengths: list[int]) -> list[torch.Tensor]:
    """The DRAFT x DRAFT cells of each request in a mask that has prefix cells too."""
    cells, at = [], 0
    for length in lengths:
        rows = mask[at : at + DRAFT * (length + DRAFT)].reshape(DRAFT, length + DRAFT)
        cells.append(rows[:, length:].to(torch.uint8).clone())
        at += rows.numel()
    return cells


def _write_trees(
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


# In place of the CUDA kernel that the release's tree builder launches.
for _name in ("sgl_build_tree_kernel_efficient", "build_tree_kernel_efficient_func"):
    setattr(eagle_utils, _name, _write_trees)


CHECKS = {"steps": lambda inputs: same(PATCH, step, [*EDGES, *inputs(drawn)])}
"""Every part of a step, replayed and eager, on each pair of backends."""
