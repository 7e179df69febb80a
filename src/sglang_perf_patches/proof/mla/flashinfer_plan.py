"""FlashInfer MLA plans verify and draft-extend, replayed and eager, with stock's numbers."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from .. import Different, Inputs
from ..comparing import same
from . import wheels
from .batches import Batch, prepare_backend, requests_of, some_lengths, verify_input
from .rig import Room, furnished, model_runner, server_args

PATCH = "mla.flashinfer-plan"
CAPTURED = 6

MODULE = wheels.flashinfer_mla()
EXTENDING = (ForwardMode.DRAFT_EXTEND_V2, ForwardMode.EXTEND)

Case = dict[str, Any]

_PLAIN: Case = {
    "draft": 3,
    "lengths": [40, 7],
    "padding": 1,
    "host": True,
    "mode": ForwardMode.TARGET_VERIFY,
    "graph": True,
}
EDGES: tuple[Case, ...] = (
    _PLAIN,
    {**_PLAIN, "graph": False},
    {**_PLAIN, "draft": 1, "lengths": [1], "padding": 0},
    {**_PLAIN, "lengths": [110] * CAPTURED},
    {**_PLAIN, "host": False},
    {**_PLAIN, "mode": ForwardMode.DRAFT_EXTEND_V2},
    {**_PLAIN, "mode": ForwardMode.DRAFT_EXTEND_V2, "host": False},
    {**_PLAIN, "mode": ForwardMode.EXTEND},
    {**_PLAIN, "mode": ForwardMode.DECODE},
)


def compare(inputs: Inputs) -> int:
    """Compare what is planned with, of what the patch serves and of what it leaves to stock."""
    return same(PATCH, plans, [*EDGES, *inputs(drawn)])


def drawn(random: Random) -> Case:
    """A step's forward."""
    verify, extend = ForwardMode.TARGET_VERIFY, ForwardMode.DRAFT_EXTEND_V2
    return {
        "draft": random.randint(1, 5),
        "lengths": some_lengths(random, CAPTURED),
        "padding": random.randint(0, 2),
        "host": random.random() < 0.8,
        "mode": random.choice([verify, verify, extend, ForwardMode.DECODE, ForwardMode.EXTEND]),
        "graph": random.random() < 0.6,
    }


def plans(case: Case) -> list[Any]:
    """Capture and replay, or prepare an eager batch; what the wrapper is planned with."""
    arguments = server_args(
        speculative_num_draft_tokens=case["draft"],
        disable_overlap_schedule=not case.get("overlap"),
    )
    with furnished(arguments, MODULE.__name__):
        runner = model_runner(arguments, mla=True)
        backend = MODULE.FlashInferMLAAttnBackend(runner)
        if case["mode"] in EXTENDING or not case["graph"]:
            # Data parallelism pads an eager verify.
            padding = case["padding"] if case["mode"] is ForwardMode.TARGET_VERIFY else 0
            prepared = forward_batch(runner, case, case["lengths"], padding, case["host"])
            backend.init_forward_metadata(prepared)
            planned = [
                backend.prefill_wrapper_paged,
                backend.prefill_wrapper_verify,
                backend.decode_wrapper,
                backend.prefill_wrapper_ragged,
            ]
            found = [list(wrapper.plans) for wrapper in planned]
        else:
            found = [_replayed(backend, runner, case)]
        if not any(found):
            raise Different(f"{PATCH}: nothing was planned")
        return found


def _replayed(backend: Any, runner: Room, case: Case) -> list[Any]:
    backend.init_cuda_graph_state(CAPTURED, CAPTURED * case["draft"])
    bs = min(len(case["lengths"]) + case["padding"], CAPTURED)
    host = case["host"] or case["mode"] is ForwardMode.DECODE  # stock's decode needs it
    prepare_backend(backend, forward_batch(runner, case, [1] * bs, 0, True), capture=True)
    metadata = backend.forward_metadata
    wrapper = getattr(metadata, "prefill_wrapper", None) or metadata.decode_wrapper
    wrapper.plans.clear()
    padding = bs - len(case["lengths"])
    prepare_backend(backend, forward_batch(runner, case, case["lengths"], padding, host))
    return list(wrapper.plans)


def forward_batch(runner: Room, case: Case, lengths: list[int], padding: int, host: bool) -> Batch:
    """A forward of these prefix lengths, padded as the graph runner pads it."""
    count, draft, mode = len(lengths), case["draft"], case["mode"]
    bs, device = count + padding, runner.device
    prefixes = torch.tensor(lengths + [1] * padding, dtype=torch.int64, device=device)
    seq_lens = prefixes + draft if mode in EXTENDING else prefixes
    verifying = mode is ForwardMode.TARGET_VERIFY
    return Batch(
        batch_size=bs,
        forward_mode=mode,
        req_pool_indices=requests_of(runner, count, padding),
        req_to_token_pool=runner.req_to_token_pool,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens.cpu() if host else None,
        seq_lens_sum=int(seq_lens.sum()),
        extend_prefix_lens=prefixes.to(torch.int32),
        extend_prefix_lens_cpu=prefixes.tolist(),
        extend_seq_lens=torch.full((bs,), draft, dtype=torch.int32, device=device),
        attn_dcp_metadata=None,
        positions=torch.zeros(bs * draft if verifying else bs, device=device),
        spec_info=verify_input(draft, device) if verifying else None,
        encoder_lens=None,
        out_cache_loc=None,
        kv_loc_plan=None,
    )
