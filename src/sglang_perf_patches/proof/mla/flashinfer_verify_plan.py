"""FlashInfer plans a verify with stock's numbers, and its kernel finds stock's mask."""

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

PATCH = "mla.flashinfer-verify-plan"
CAPTURED = 6

MODULE = wheels.flashinfer()

Case = dict[str, Any]

_PLAIN: Case = {
    "draft": 3,
    "topk": 2,
    "lengths": [40, 7],
    "padding": 1,
    "host": True,
    "graph": True,
    "seed": 0,
}
EDGES: tuple[Case, ...] = (
    _PLAIN,
    {**_PLAIN, "graph": False},
    {**_PLAIN, "topk": 1, "draft": 4, "padding": 0},
    {**_PLAIN, "draft": 1, "lengths": [1], "padding": 2},
    {**_PLAIN, "draft": 8, "topk": 4, "lengths": [110] * CAPTURED},
    {**_PLAIN, "host": False},
)


def compare(inputs: Inputs) -> int:
    """Compare what a verify is planned with, and the mask that its kernel reads."""
    return same(PATCH, verify, [*EDGES, *inputs(drawn)])


def drawn(random: Random) -> Case:
    """A verify."""
    return {
        "draft": random.randint(1, 8),
        "topk": random.randint(1, 4),
        "lengths": some_lengths(random, CAPTURED),
        "padding": random.randint(0, 2),
        "host": random.random() < 0.8,
        "graph": random.random() < 0.8,
        "seed": random.randint(0, 999),
    }


def verify(case: Case) -> list[Any]:
    """Capture a verify and replay two others, or prepare an eager one; what its kernel gets."""
    draft = case["draft"]
    arguments = server_args(speculative_num_draft_tokens=draft, speculative_eagle_topk=case["topk"])
    with furnished(arguments, MODULE.__name__):
        runner = model_runner(arguments)
        backend = MODULE.FlashInferAttnBackend(runner)
        if not case["graph"]:
            batch = verify_batch(runner, case, case["lengths"])
            backend.init_forward_metadata(batch)
            return [wrapper.plans for wrapper in backend.forward_metadata.prefill_wrappers]
        backend.init_cuda_graph_state(CAPTURED, CAPTURED * draft)
        padding = min(case["padding"], CAPTURED - len(case["lengths"]))
        bs = len(case["lengths"]) + padding
        prepare_backend(backend, verify_batch(runner, case, [1] * bs, host=True), capture=True)
        (wrapper,) = backend.forward_metadata.prefill_wrappers
        found = []
        for lengths in (case["lengths"], [1 + length // 2 for length in case["lengths"]]):
            wrapper.plans.clear()
            wrapper._custom_mask_buf.fill_(0xA5)
            prepare_backend(backend, verify_batch(runner, case, lengths, padding))
            if "begin_forward" in vars(wrapper):
                raise Different(f"{PATCH}: the wrapper keeps a plan that is not the wheel's")
            found.append([list(wrapper.plans), _read(wrapper)])
        return found


def verify_batch(
    runner: Room, case: Case, lengths: list[int], padding: int = 0, host: bool | None = None
) -> Batch:
    """A verify of these prefix lengths and of trees with random masks, padded as a graph's is."""
    count, draft, device = len(lengths), case["draft"], runner.device
    bs = count + padding
    seq_lens = torch.tensor(lengths + [1] * padding, dtype=torch.int64, device=device)
    return Batch(
        batch_size=bs,
        forward_mode=ForwardMode.TARGET_VERIFY,
        req_pool_indices=requests_of(runner, count, padding),
        req_to_token_pool=runner.req_to_token_pool,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens.cpu() if (case["host"] if host is None else host) else None,
        seq_lens_sum=int(seq_lens.sum()),
        positions=torch.zeros(bs * draft, device=device),
        spec_info=_input(case, lengths, device),
        encoder_lens=None,
        out_cache_loc=None,
        kv_loc_plan=None,
    )


def _input(case: Case, lengths: list[int], device: str) -> Any:
    draft, noise = case["draft"], torch.Generator().manual_seed(case["seed"])
    made = verify_input(draft, device, topk=case["topk"], steps=3)
    cells = sum(draft * (length + draft) for length in lengths)
    made.custom_mask = (torch.rand(cells, generator=noise) < 0.7).to(device)
    return made


def _read(wrapper: Any) -> list[Any]:
    """What the kernel reads, as far as it does."""
    starts = wrapper._mask_indptr_buf
    return [
        wrapper._qo_indptr_buf,
        wrapper._paged_kv_indptr_buf,
        wrapper._paged_kv_last_page_len_buf,
        wrapper._paged_kv_indices_buf[: int(wrapper._paged_kv_indptr_buf[-1])],
        starts,
        wrapper._custom_mask_buf[: int(starts[-1]) + 1],  # and not a byte more
    ]
