"""Page tables hold stock's entries, and extend as far as a step at the context limit reads."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

from .. import Different, Inputs
from ..comparing import live, same
from . import flash
from .cases import draft_batch, prepare, requests_of
from .rig import furnished

PATCH = "mla.page-table-bound"
CAPTURED = 4

Case = dict[str, Any]

EDGES: tuple[Case, ...] = (
    {"lengths": [40, 7], "page": 1, "mode": "extend", "graph": True, "padding": 1},
    {"lengths": [40, 7], "page": 16, "mode": "extend", "graph": False, "padding": 0},
    {"lengths": [40, 7], "page": 1, "mode": "verify", "graph": True, "padding": 1},
    {"lengths": [200, 9], "page": 4, "mode": "verify", "graph": False, "padding": 0},
    {"lengths": [40, 7], "page": 1, "mode": "draft", "graph": True, "padding": 1},
    {"lengths": [flash.CONTEXT - 6], "page": 1, "mode": "draft", "graph": False, "padding": 0},
    # An idle rank of data-parallel attention replays as many rows as the others have requests.
    {"lengths": [], "page": 1, "mode": "extend", "graph": True, "padding": 2},
    {"lengths": [], "page": 16, "mode": "verify", "graph": True, "padding": 4},
    {"lengths": [], "page": 1, "mode": "draft", "graph": True, "padding": 3},
    {"lengths": [9], "page": 1, "mode": "verify", "graph": True, "padding": 3},
)
MODES = {"extend": flash.EXTEND, "verify": flash.VERIFY}
LIMITS = tuple(product((*MODES, "draft"), (True, False), (1, 16)))
"""Mode, whether by graph, and page size of each batch at the context limit."""


def limits(_: Inputs) -> int:
    """See that batches at the context limit read what is theirs."""
    with live(PATCH):
        for mode, graph, page in LIMITS:
            at_the_limit(mode, graph=graph, page=page)
    return len(LIMITS)


def drawn(random: Random) -> Case:
    """A batch of which no step reads past the context."""
    most = flash.CONTEXT - flash.DRAFT
    return {
        "lengths": [random.randint(1, most) for _ in range(random.randint(1, CAPTURED - 1))],
        "page": random.choice([1, 4, 16]),
        "mode": random.choice(["extend", "verify", "draft"]),
        "graph": random.random() < 0.6,
        "padding": random.randint(0, 1),
    }


def tables(case: Case) -> list[Any]:
    """What the kernels of a batch read."""
    page = case["page"]
    with furnished(flash.arguments(page), flash.module.__name__):
        runner = flash.runner_of(page)
        return [
            flash.read(metadata, page)
            for metadata in prepared(runner, case["mode"], case["lengths"], case)
        ]


def prepared(runner: Any, mode: str, lengths: list[int], case: Case) -> list[Any]:
    """The metadata of a batch, one of each step for a draft."""
    padding = case["padding"] if case["graph"] else 0
    if mode == "draft":
        steps = flash.DRAFT - 1
        draft = flash.module.FlashAttentionMultiStepBackend(runner, 1, steps)
        options: Any = {"steps": steps}
        batch = draft_batch(runner, lengths, padding, **options)
        if not flash.HOST_LENGTHS:
            batch.seq_lens_cpu = None
        if not case["graph"]:
            draft.init_forward_metadata(batch)
            return [step.forward_metadata for step in draft.attn_backends]
        draft.init_cuda_graph_state(CAPTURED, CAPTURED)
        bs = batch.batch_size
        prepare(draft, draft_batch(runner, [1] * bs, **options), capture=True)
        prepare(draft, batch)
        return [step.decode_cuda_graph_metadata[bs] for step in draft.attn_backends]
    backend = flash.make(runner)
    batch = flash.batch(runner, MODES[mode], lengths, padding)
    if not case["graph"]:
        backend.init_forward_metadata(batch)
        return [backend.forward_metadata]
    backend.init_cuda_graph_state(CAPTURED, CAPTURED * flash.DRAFT)
    return [flash.replayed(backend, runner, batch)]


def at_the_limit(mode: str, *, graph: bool, page: int) -> None:
    """A batch that reads past the context: each request its own pages, or padding's.

    Raises:
        Different: a row has another's page, or memory that is not the table's.
    """
    lengths = [flash.CONTEXT + 2, 17, flash.CONTEXT - 2]  # the first one has just ended
    case = {"graph": graph, "padding": 0}
    with furnished(flash.arguments(page), flash.module.__name__):
        runner = flash.runner_of(page)
        for metadata in prepared(runner, mode, lengths, case):
            _check(runner, metadata, page, f"{mode}, {'graph' if graph else 'eager'}, page {page}")


def _check(runner: Any, metadata: Any, page: int, what: str) -> None:
    rows = requests_of(runner, 3)
    pool = runner.req_to_token_pool.req_to_token
    for row, length in enumerate(metadata.cache_seqlens_int32.tolist()):
        for column in range(-(-length // page)):
            expected = int(pool[rows[row], column * page]) // page
            actual = flash.beyond(metadata.page_table, row, column)
            past = column >= metadata.page_table.shape[1]
            if actual != expected and not (past and actual == 0):
                raise Different(
                    f"{PATCH}: {what}: request {row} reads page {actual} as its {column}th, "
                    f"which is {expected}"
                )


CHECKS = {
    "within the context": lambda inputs: same(PATCH, tables, [*EDGES, *inputs(drawn)]),
    "at its limit": limits,
}
