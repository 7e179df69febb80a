"""When a step needs no lengths on the host, and the masks that a hybrid backend then lends."""

from functools import partial
from typing import Any

import torch
from sglang.srt.managers import overlap_utils, scheduler
from sglang.srt.speculative import eagle_worker_v2
from sglang.srt.speculative.multi_layer_eagle_worker_v2 import MultiLayerEagleWorkerV2

import sglang_perf_patches
from sglang_perf_patches.verify.comparing import live
from sglang_perf_patches.verify.mla.rig import CONTEXT, furnished, model_runner
from sglang_perf_patches.verify.stock import NoneByDefault
from tests.proof.mla.sync_opt_out import (
    CAPTURED,
    DRAFT,
    MODULES,
    PATCH,
    TRTLLM,
    arguments,
    backend,
    build,
    cells_of,
    drafting,
    forward_batch,
    published,
)

_DECIDE = overlap_utils.decide_needs_cpu_seq_lens
PIECEWISE = "disable_piecewise_cuda_graph" in _DECIDE.__code__.co_names
BOUNDS = "max_context_len" in TRTLLM.TRTLLMMLABackend.init_forward_metadata.__code__.co_names


def needs(
    target: str, draft: str | None, extend: str | None, fallback: str = "triton", **given: Any
) -> bool:
    """The scheduler's decision for a worker's backends."""
    served = arguments(**given)
    with furnished(served, *MODULES):
        runner = model_runner(served, mla=True)
        of_draft = model_runner(served, mla=True, is_draft_worker=True)
        worker = NoneByDefault(
            _target_worker=NoneByDefault(
                model_runner=NoneByDefault(attn_backend=backend(target, runner))
            ),
            _draft_worker=NoneByDefault(
                draft_attn_backend=drafting(draft, of_draft) if draft else None,
                draft_extend_attn_backend=backend(extend, of_draft) if extend else None,
                draft_runner=NoneByDefault(attn_backend=backend(fallback, of_draft)),
            ),
        )
        backends = eagle_worker_v2.EAGLEWorkerV2.spec_v2_attn_backends.fget(worker)
        return bool(scheduler.decide_needs_cpu_seq_lens(served, backends))


def layered(extends: tuple[str | None, ...], **given: Any) -> bool:
    """The same of a worker with one draft layer per step."""
    served = arguments(enable_multi_layer_eagle=True, **given)
    with furnished(served, *MODULES):
        runner = model_runner(served, mla=True)
        worker = NoneByDefault(
            _target_worker=NoneByDefault(
                model_runner=NoneByDefault(attn_backend=backend("triton", runner))
            ),
            _draft_worker=NoneByDefault(
                draft_extend_attn_backend_list=[
                    backend(kind, runner) if kind else None for kind in extends
                ],
                draft_runner_list=[NoneByDefault(attn_backend=backend("flashinfer", runner))]
                * len(extends),
            ),
        )
        backends = MultiLayerEagleWorkerV2.spec_v2_attn_backends.fget(worker)
        return bool(scheduler.decide_needs_cpu_seq_lens(served, backends))


PLAIN = ("triton", "triton", "triton")
HYBRID = ("flashinfer+triton", "triton", "triton")
DECODE = {"speculative_attention_mode": "decode"}
"""Decode's backend counts, prefill's only where it verifies."""
DECISIONS: list[tuple[tuple[Any, ...], dict[str, Any], bool, bool]] = [
    # backends, arguments, whether the patched server needs host lengths, whether stock's does
    (PLAIN, {}, False, PIECEWISE),
    (("trtllm", "trtllm", "trtllm"), {}, False, PIECEWISE),
    (("triton", None, "triton"), {"speculative_num_steps": 1}, False, PIECEWISE),
    (("flashinfer", "triton", "triton"), {}, True, True),
    (("triton", "flashinfer", "triton"), {}, True, True),
    (("triton", "triton", "flashinfer"), {}, True, True),
    (("triton", None, "triton"), {}, True, PIECEWISE),
    (HYBRID, DECODE, False, True),
    (("flashinfer+trtllm", "trtllm", "trtllm"), DECODE, BOUNDS, True),
    (HYBRID, {}, True, True),
    (("triton+flashinfer", "triton", "triton"), {}, True, True),
    (("triton", "triton", "flashinfer+triton"), DECODE, True, True),
    # Stock 0.5.13 misses what an unnamed draft-extend runs on where piecewise graphs are off.
    (
        ("triton", "triton", None, "flashinfer"),
        {"disable_piecewise_cuda_graph": True},
        True,
        not PIECEWISE,
    ),
]


def stocks_decisions() -> None:
    for backends, given, _, stock in DECISIONS:
        assert needs(*backends, **given) == stock, f"stock: {backends}, {given}"


def decisions() -> None:
    with live(PATCH):
        for backends, given, patched, _ in DECISIONS:
            assert needs(*backends, **given) == patched, (backends, given)


def layered_decisions() -> None:
    with live(PATCH):
        assert not layered(("triton", "triton"))
        assert layered(("triton", None))
        assert layered(("triton", "flashinfer"))


def unserved() -> None:
    """M-RoPE is left to stock."""
    mrope = NoneByDefault(rope_scaling={"mrope_section": [1, 1, 2]})
    model = NoneByDefault(hf_text_config=mrope)
    with live(PATCH, ran=False):
        assert needs(*HYBRID, **DECODE, get_model_config=lambda: model)
        assert sglang_perf_patches.activate(PATCH).of(PATCH).state == "gated"


@live(PATCH)
def large_batch(kind: str) -> None:
    """An eager batch larger than the captured ones gets a mask of its own, and stays in it."""
    served = arguments(speculative_attention_mode="decode")
    lengths = [CONTEXT - 8] * (CAPTURED + 2)
    case = {"kind": kind, "mode": "verify", "lengths": lengths}
    with furnished(served, *MODULES):
        runner = model_runner(served, mla=True)
        target = backend(kind, runner)
        assert not overlap_utils.decide_needs_cpu_seq_lens(served, (target,))
        target.init_cuda_graph_state(CAPTURED, CAPTURED * DRAFT)
        child = target.decode_backend
        guarded = torch.full((child.cuda_graph_custom_mask.numel() + 4096,), 7, dtype=torch.uint8)
        child.cuda_graph_custom_mask = guarded[: child.cuda_graph_custom_mask.numel()]
        batch = published(runner, lengths, False)
        forward = forward_batch(runner, batch, case)
        build(case, target, batch, forward)
        assert bool((guarded == 7).all()), "the buffer was written"
        mask = forward.spec_info.custom_mask
        assert mask.numel() >= sum(DRAFT * (length + DRAFT) for length in lengths)
        chain = torch.tril(torch.ones(DRAFT, DRAFT, dtype=torch.uint8))
        assert all(torch.equal(c, chain) for c in cells_of(mask, lengths))


@live(PATCH)
def no_graphs() -> None:
    """Without graphs a hybrid has no mask to lend, and stock's worker knows the longest context."""
    served = arguments(speculative_attention_mode="decode")
    with furnished(served, *MODULES):
        runner = model_runner(served, mla=True)
        target = backend("flashinfer+triton", runner)
        assert not overlap_utils.decide_needs_cpu_seq_lens(served, (target,))
        assert target.get_verify_buffers_to_fill_after_draft() == [None, None]
        assert target.max_context_len == CONTEXT
        target.update_verify_buffers_to_fill_after_draft(None, None)  # the plan stream's


KINDS = ("flashinfer+triton", *(() if BOUNDS else ("flashinfer+trtllm",)))
CHECKS = {
    "stock's decisions": stocks_decisions,
    "decisions": decisions,
    "decisions of layered workers": layered_decisions,
    "left to stock": unserved,
    **{f"masks of {kind}": partial(large_batch, kind) for kind in KINDS},
    "no graphs": no_graphs,
}
