"""The steps of a FlashMLA draft hold what stock's steps hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest import mock

import torch

from .. import Inputs
from ..comparing import same
from .batches import draft_batch, prepare, some_lengths
from .rig import Room, furnished, model_runner, server_args
from .wheels import flash_mla

PATCH = "mla.shared-flashmla-tables"
CAPTURED = 4
module, flashinfer_mla_backend = flash_mla()
PAGE = module.PAGE_SIZE
PARTS = 4

Case = dict[str, Any]

EDGES: tuple[Case, ...] = (
    {"steps": 3, "rounds": [[40, 7], [41, 8]], "padding": 1, "graph": True},
    {"steps": 5, "rounds": [[100], [3, 64, 65]], "padding": 1, "graph": True},
    {"steps": 3, "rounds": [[40, 7]], "padding": 0, "graph": False},
    {"steps": 2, "rounds": [[5]], "padding": 0, "graph": True},
)


def compare(inputs: Inputs) -> int:
    """Compare the drafts' block tables and plans."""
    return same(PATCH, drafts, [*EDGES, *inputs(drawn)])


def drawn(random: Random) -> Case:
    """Drafts of one server, one after the other."""
    return {
        "steps": random.randint(2, 5),
        "rounds": [some_lengths(random, CAPTURED - 1) for _ in range(random.randint(1, 3))],
        "padding": random.randint(0, 1),
        "graph": random.random() < 0.7,
    }


@contextmanager
def lent() -> Iterator[list[Any]]:
    """The wheel's plan, which needs a GPU: numbers that tell lengths and heads apart; its calls."""
    calls: list[Any] = []

    def get_mla_metadata(lengths: Any, heads: int, *more: Any, **options: Any) -> tuple[Any, Any]:
        calls.append(lengths.clone())
        parts = torch.arange(PARTS * 8, dtype=torch.int32).reshape(PARTS, 8) * int(lengths.sum())
        splits = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(torch.int32)
        return parts + heads, splits

    device = Room(multi_processor_count=PARTS)
    with (
        mock.patch.object(module, "get_mla_metadata", get_mla_metadata),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=device),
    ):
        yield calls


def arguments(steps: int) -> Room:
    """The server's."""
    return server_args(
        speculative_num_steps=steps, speculative_num_draft_tokens=steps + 1, page_size=PAGE
    )


def make(steps: int) -> tuple[Any, Room]:
    """A draft backend with its graph state."""
    runner = model_runner(arguments(steps), mla=True, is_draft_worker=True)
    backend = module.FlashMLAMultiStepDraftBackend(runner, 1, steps)
    backend.init_cuda_graph_state(CAPTURED, CAPTURED)
    return backend, runner


def drafts(case: Case) -> list[Any]:
    """Prepare drafts, replayed or eager; what each step's kernel reads."""
    given: Any = {"steps": case["steps"]}
    names = (module.__name__, flashinfer_mla_backend.__name__)
    with furnished(arguments(case["steps"]), *names), lent():
        backend, runner = make(case["steps"])
        held: dict[int, list[Any]] = {}
        if case["graph"]:
            for bs in range(1, CAPTURED + 1):
                prepare(backend, draft_batch(runner, [1] * bs, **given), capture=True)
                held[bs] = [step.forward_metadata for step in backend.attn_backends]
        found = []
        for lengths in case["rounds"]:
            padding = case["padding"] if case["graph"] else 0
            batch = draft_batch(runner, lengths, padding, **given)
            if case["graph"]:
                prepare(backend, batch)
                read = held[batch.batch_size]  # the tensors of the captured graph
            else:
                backend.init_forward_metadata(batch)
                read = [step.forward_metadata for step in backend.attn_backends]
            found += [_read(metadata, lengths) for metadata in read]
        return found


def _read(metadata: Any, lengths: list[int]) -> dict[str, Any]:
    """By address: up to 0.5.12.post1 a captured table is narrower than what its kernel reads."""
    table = metadata.block_kv_indices
    step, start = table.stride(0), table.storage_offset()
    return {
        "plan": metadata.flashmla_metadata.clone(),
        "splits": metadata.num_splits.clone(),
        "table": [
            torch.as_strided(table, (-(-length // PAGE),), (1,), start + row * step).clone()
            for row, length in enumerate(lengths)
        ],
    }
