"""A FlashAttention draft with topk = 1 reads from one page table what stock's steps read."""

from __future__ import annotations

from random import Random
from typing import Any

from sglang.srt.layers.attention import flashattention_backend as module

from .. import Different, Inputs
from ..comparing import same
from .batches import draft_batch, prepare, some_lengths
from .rig import Room, furnished, model_runner, server_args

PATCH = "mla.shared-draft-tables"
CAPTURED = 6

Case = dict[str, Any]

EDGES: tuple[Case, ...] = (
    {"steps": 5, "topk": 1, "page": 1, "rounds": [[40, 7], [41, 8], [3] * 6], "padding": 2},
    {"steps": 4, "topk": 1, "page": 16, "rounds": [[120], [1, 16, 17]], "padding": 1},
    {"steps": 3, "topk": 1, "page": 4, "rounds": [[33, 9]], "padding": 1},
    {"steps": 2, "topk": 1, "page": 4, "rounds": [[5]], "padding": 0},
    {"steps": 3, "topk": 2, "page": 1, "rounds": [[20, 9]], "padding": 1},
)


def compare(inputs: Inputs) -> int:
    """Compare replayed drafts."""
    return same(PATCH, draft, [*EDGES, *inputs(drawn)])


def drawn(random: Random) -> Case:
    """Drafts of one server, one after the other."""
    return {
        "steps": random.randint(2, 5),
        "topk": random.choice([1, 1, 1, 2]),
        "page": random.choice([1, 4, 16]),
        "rounds": [some_lengths(random, CAPTURED) for _ in range(random.randint(1, 3))],
        "padding": random.randint(0, 2),
    }


def arguments(case: Case) -> Room:
    """The server's."""
    return server_args(
        speculative_num_steps=case["steps"],
        speculative_num_draft_tokens=case["steps"] + 1,
        speculative_eagle_topk=case["topk"],
        page_size=case["page"],
    )


def make(case: Case) -> tuple[Any, Room]:
    """A draft backend with its graph state."""
    runner = model_runner(arguments(case), is_draft_worker=True)
    backend = module.FlashAttentionMultiStepBackend(runner, case["topk"], case["steps"])
    backend.init_cuda_graph_state(CAPTURED, CAPTURED * case["topk"])
    return backend, runner


def draft(case: Case) -> list[Any]:
    """Replay drafts, after all their graphs were captured; what each step's kernel reads."""
    options = {"topk": case["topk"], "steps": case["steps"]}
    with furnished(arguments(case), module.__name__):
        backend, runner = make(case)
        for bs in range(1, CAPTURED + 1):
            prepare(backend, draft_batch(runner, [1] * bs, **options), capture=True)
        found = []
        for lengths in case["rounds"]:
            padding = min(case["padding"], CAPTURED - len(lengths))
            batch = draft_batch(runner, lengths, padding, **options)
            prepare(backend, batch)
            found += [read(step, batch.batch_size, case) for step in backend.attn_backends]
        return found


def read(step: Any, bs: int, case: Case) -> dict[str, Any]:
    """The metadata that a step's captured kernel reads; of the table, each request's prefix."""
    if case["topk"] > 1:
        metadata = step.draft_decode_metadata_topk_normal[bs]
        lengths = metadata.cache_seqlens_int32.clone()
        return {"lengths": lengths, "table": metadata.page_table.clone()}
    metadata = step.decode_cuda_graph_metadata[bs]
    if step.forward_metadata is not metadata:
        raise Different(f"{PATCH}: a step reads other metadata than its graph was captured with")
    pages = [-(-length // case["page"]) for length in metadata.cache_seqlens_int32.tolist()]
    return {
        "lengths": metadata.cache_seqlens_int32.clone(),
        "starts": metadata.cu_seqlens_k.clone(),
        "queries": metadata.cu_seqlens_q.clone(),
        "table": [
            row[:count].clone() for row, count in zip(metadata.page_table, pages, strict=True)
        ],
        "width": tuple(metadata.page_table.shape),
        "step": (metadata.max_seq_len_q, metadata.max_seq_len_k),
    }
