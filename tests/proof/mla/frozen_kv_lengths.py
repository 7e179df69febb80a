"""A draft that reads the target's KV is given the same, and so is the verify of its tree."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from sglang.srt.layers.attention import triton_backend
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.speculative import frozen_kv_mtp_info, frozen_kv_mtp_worker_v2

from sglang_perf_patches.verify.comparing import same
from sglang_perf_patches.verify.mla import cases
from sglang_perf_patches.verify.mla.cases import Batch, requests_of
from sglang_perf_patches.verify.mla.rig import furnished, model_runner
from sglang_perf_patches.verify.stock import NoneByDefault
from tests.proof.mla import some_lengths
from tests.proof.mla.sync_opt_out import CAPTURED, DRAFT, arguments, cells_of, prepare, read

PATCH = "mla.frozen-kv-lengths"
MODULES = (triton_backend.__name__, frozen_kv_mtp_worker_v2.__name__)
WIDTH = 8  # of the hidden states

Case = dict[str, Any]

EDGES: tuple[Case, ...] = tuple(
    {"graph": graph, "lengths": lengths, "spare": spare, "seed": 1}
    for graph in (True, False)
    for lengths in ([40, 7], [40, 7, 90, 1], [1])
    for spare in (DRAFT, 3 * DRAFT)
)


def drawn(random: Random) -> Case:
    return {
        "graph": random.random() < 0.5,
        "lengths": some_lengths(random, CAPTURED),
        "spare": random.randint(DRAFT, 3 * DRAFT),
        "seed": random.randint(0, 3),
    }


def step(case: Case, **changes: Any) -> dict[str, Any]:
    """Draft once; what the kernels of the draft and of the verify read, and the tree.

    Each request of the case has memory for ``spare`` more tokens.
    """
    served = arguments(speculative_algorithm="FROZEN_KV_MTP")
    with furnished(served, *MODULES):
        runner = model_runner(served, seed=case["seed"])
        target = triton_backend.TritonAttnBackend(runner)
        target.init_cuda_graph_state(CAPTURED, CAPTURED * DRAFT)
        worker = drafting(case, runner, target)
        batch = scheduled(case, runner, **changes)
        with mock.patch.object(frozen_kv_mtp_worker_v2, "ForwardBatch", _Forward(runner)):
            verify = worker.draft(batch)
        verify.num_tokens_per_req = DRAFT
        mode = ForwardMode.TARGET_VERIFY
        forward = forward_batch(runner, mode, batch, positions=verify.positions, spec_info=verify)
        prepare(target, forward, is_replayed=case["graph"])
        return {
            "draft": read(worker.draft_attn_backend, worker.drafted, case),
            "verify": read(target, forward, case),
            "tree": [
                verify.positions,
                verify.retrieve_index,
                verify.retrieve_next_token,
                verify.retrieve_next_sibling,
                verify.draft_token,
                *cells_of(verify.custom_mask, case["lengths"]),
            ],
        }


def scheduled(case: Case, runner: Any, **changes: Any) -> NoneByDefault:
    """The scheduler's batch: the GPU has its lengths, the host what each request has memory for."""
    count = len(case["lengths"])
    held = [length + case["spare"] for length in case["lengths"]]
    own: dict[str, Any] = {
        "forward_mode": ForwardMode.DECODE,
        "spec_info": frozen_kv_mtp_info.FrozenKVMTPDraftInput(
            bonus_tokens=torch.arange(count), hidden_states=torch.zeros(count, WIDTH)
        ),
        "reqs": [
            SimpleNamespace(kv=SimpleNamespace(kv_allocated_len=n), kv_allocated_len=n)
            for n in held
        ],
        "req_pool_indices": requests_of(runner, count),
        "seq_lens": torch.tensor(case["lengths"]),
        "seq_lens_cpu": None,
        "seq_lens_sum": None,
    }
    return NoneByDefault(**own | changes)


def drafting(case: Case, runner: Any, target: Any) -> Any:
    """The release's worker, whose model drafts chains and computes nothing."""
    worker = object.__new__(frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker)
    steps = DRAFT - 1
    of_draft = model_runner(runner.server_args, is_draft_worker=True)
    own = {
        "topk": 1,
        "req_to_token_pool": runner.req_to_token_pool,
        "speculative_num_steps": steps,
        "speculative_num_draft_tokens": DRAFT,
        "target_worker": NoneByDefault(model_runner=NoneByDefault(attn_backend=target)),
        **dict.fromkeys(("draft_model_runner", "_model_runner"), of_draft),
        "kv_context": NoneByDefault(target_token_to_kv_pool=runner.token_to_kv_pool),
    }
    vars(worker).update(own)
    backend = worker._init_triton_draft_attn_backend()
    backend.init_cuda_graph_state(CAPTURED, CAPTURED)
    worker.draft_attn_backend = backend

    def drafted(forward: Any) -> tuple[Any, ...]:
        """Prepare the metadata as stock does, and draft a chain for each request."""
        worker.drafted, count = forward, forward.batch_size
        if case["graph"]:
            captured = Batch(**vars(forward))  # a capture knows its lengths
            captured.seq_lens_cpu = forward.seq_lens.clone()
            worker._init_frozen_kv_metadata_capture_cuda_graph(captured)
            worker._init_frozen_kv_metadata_replay_cuda_graph(forward, count, forward.seq_lens_sum)
        else:
            worker._init_frozen_kv_metadata(forward)
        nodes = torch.arange(steps).repeat(count, 1)
        return [], nodes, torch.ones((count, steps), dtype=torch.int64)

    graphs = NoneByDefault(can_run_graph=lambda _: True, execute=drafted)
    worker.cuda_graph_runner = graphs if case["graph"] else None
    worker.draft_forward = drafted
    return worker


def forward_batch(runner: Any, mode: ForwardMode, batch: Any, **fields: Any) -> Batch:
    """A forward of the scheduler's batch, with what the host knows of its lengths."""
    host = {name: getattr(batch, name) for name in ("seq_lens_cpu", "seq_lens_sum")}
    requests, lengths = batch.req_pool_indices, batch.seq_lens
    return cases.forward_batch(runner, mode, requests, lengths, **host, **fields)


class _Forward:
    """In the place of ``ForwardBatch``: what the draft's metadata is built from."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def init_new(self, batch: Any, _: Any, **__: Any) -> Batch:
        return forward_batch(
            self._runner,
            ForwardMode.DECODE,
            batch,
            spec_info=batch.spec_info,
            capture_hidden_mode=CaptureHiddenMode.LAST,
            mark_forward_metadata_ready=lambda: None,
        )


CHECKS = {"steps": lambda inputs: same(PATCH, step, [*EDGES, *inputs(drawn)])}
"""A draft and the verify of its tree, replayed and eager."""
