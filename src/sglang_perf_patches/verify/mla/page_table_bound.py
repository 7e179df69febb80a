"""Page tables hold stock's entries, and extend as far as a step at the context limit reads.

The backends are FlashAttention's of a speculative server with topk = 1. The kernel itself is a CUDA
wheel; what it reads is the backend's own: lengths, their sums, and a page table of which each row
holds a request's pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from random import Random
from typing import Any

import torch
from sglang.srt.layers.attention import flashattention_backend
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from .. import Different, Inputs
from ..comparing import live, same
from ..stock import NoneByDefault
from .cases import draft_batch, forward_batch, prepare, prepare_backend, requests_of, verify_input
from .rig import furnished, model_runner, server_args

PATCH = "mla.page-table-bound"
CONTEXT = 250
"""Neither whole pages nor whole blocks of the kernels that build tables, as 163840 + 1 would be."""

EXTRA = 12
"""Tokens of a row of the request pool past the context: stock's 4, the drafted ones, and more."""

CAPTURED = DRAFT = 4
MODULE: Any = flashattention_backend
HOST_LENGTHS = not hasattr(MODULE, "draft_extend_set_metadata")
"""Whether this release's backend needs the lengths on the host."""

MODES = {"extend": ForwardMode.DRAFT_EXTEND_V2, "verify": ForwardMode.TARGET_VERIFY}
LIMITS = tuple(product((*MODES, "draft"), (True, False), (1, 16)))
"""Mode, whether by graph, and page size of each batch at the context limit."""

Case = dict[str, Any]

# 0.5.9 compiles what builds its tables, which takes minutes on a CPU: the same code runs eagerly.
torch.compiler.set_stance("force_eager")

EDGES: tuple[Case, ...] = (
    {"lengths": [40, 7], "page": 1, "mode": "extend", "graph": True, "padding": 1},
    {"lengths": [40, 7], "page": 16, "mode": "extend", "graph": False, "padding": 0},
    {"lengths": [40, 7], "page": 1, "mode": "verify", "graph": True, "padding": 1},
    {"lengths": [200, 9], "page": 4, "mode": "verify", "graph": False, "padding": 0},
    {"lengths": [40, 7], "page": 1, "mode": "draft", "graph": True, "padding": 1},
    {"lengths": [CONTEXT - 6], "page": 1, "mode": "draft", "graph": False, "padding": 0},
    # An idle rank of data-parallel attention replays as many rows as the others have requests.
    {"lengths": [], "page": 1, "mode": "extend", "graph": True, "padding": 2},
    {"lengths": [], "page": 16, "mode": "verify", "graph": True, "padding": 4},
    {"lengths": [], "page": 1, "mode": "draft", "graph": True, "padding": 3},
    {"lengths": [9], "page": 1, "mode": "verify", "graph": True, "padding": 3},
)


def limits(_: Inputs) -> int:
    """See that batches at the context limit read what is theirs."""
    with live(PATCH):
        for mode, graph, page in LIMITS:
            at_the_limit(mode, graph=graph, page=page)
    return len(LIMITS)


def drawn(random: Random) -> Case:
    """A batch of which no step reads past the context."""
    most = CONTEXT - DRAFT
    return {
        "lengths": [random.randint(1, most) for _ in range(random.randint(1, CAPTURED - 1))],
        "page": random.choice([1, 4, 16]),
        "mode": random.choice([*MODES, "draft"]),
        "graph": random.random() < 0.6,
        "padding": random.randint(0, 1),
    }


@contextmanager
def served(page: int) -> Iterator[NoneByDefault]:
    """A draft's runner whose request pool has room past the context, as stock's has."""
    arguments = server_args(max_speculative_num_draft_tokens=DRAFT, page_size=page)
    with furnished(arguments, MODULE.__name__):
        context = -(-(CONTEXT + EXTRA) // page) * page
        draft: dict[str, Any] = {"is_draft_worker": True, "tp_size": 1, "attn_cp_size": 1}
        runner = model_runner(arguments, context=context, **draft)
        runner.model_config.context_len = CONTEXT
        yield runner


def tables(case: Case) -> list[Any]:
    """What the kernels of a batch read."""
    with served(case["page"]) as runner:
        return [read(metadata, case["page"]) for metadata in prepared(runner, case)]


def prepared(runner: NoneByDefault, case: Case) -> list[Any]:
    """The metadata of a batch, one of each step for a draft."""
    padding = case["padding"] if case["graph"] else 0
    if case["mode"] == "draft":
        return _drafted(runner, case, padding)
    backend = MODULE.FlashAttentionBackend(runner, topk=1)
    wanted = batch(runner, MODES[case["mode"]], case["lengths"], padding)
    if not case["graph"]:
        backend.init_forward_metadata(wanted)
        return [backend.forward_metadata]
    backend.init_cuda_graph_state(CAPTURED, CAPTURED * DRAFT)
    captured = batch(runner, wanted.forward_mode, [1] * wanted.batch_size, 0, host=True)
    captured.seq_lens.fill_(1)
    prepare_backend(backend, captured, capture=True)
    metadata = backend.forward_metadata
    prepare_backend(backend, wanted)
    return [metadata]


def _drafted(runner: NoneByDefault, case: Case, padding: int) -> list[Any]:
    steps = DRAFT - 1
    draft = MODULE.FlashAttentionMultiStepBackend(runner, 1, steps)
    wanted = draft_batch(runner, case["lengths"], padding, steps=steps)
    if not HOST_LENGTHS:
        wanted.seq_lens_cpu = None
    if not case["graph"]:
        draft.init_forward_metadata(wanted)
        return [step.forward_metadata for step in draft.attn_backends]
    draft.init_cuda_graph_state(CAPTURED, CAPTURED)
    bs = wanted.batch_size
    prepare(draft, draft_batch(runner, [1] * bs, steps=steps), capture=True)
    prepare(draft, wanted)
    return [step.decode_cuda_graph_metadata[bs] for step in draft.attn_backends]


def batch(
    runner: Any, mode: Any, prefixes: list[int], padding: int, *, host: bool = HOST_LENGTHS
) -> Any:
    """A verify or draft-extend of these prefixes, padded as a replayed graph is."""
    count, device = len(prefixes), runner.device
    bs = count + padding
    before = torch.tensor(prefixes, dtype=torch.int64, device=device)
    lengths = before + DRAFT if mode is MODES["extend"] else before
    widths = torch.full((bs,), DRAFT, dtype=torch.int32, device=device)
    spec_info: Any = verify_input(DRAFT, device)
    if mode is MODES["extend"]:
        spec_info = NoneByDefault(
            num_tokens_per_req=DRAFT,
            extend_seq_lens_cpu=[DRAFT] * bs,
            extend_seq_lens_tensor=widths,
            num_accept_tokens=widths,
            num_accepted_tokens=widths,
        )
    return forward_batch(
        runner,
        mode,
        requests_of(runner, count, padding),
        torch.cat([lengths, lengths.new_ones(padding)]),
        extend_seq_lens=widths,
        extend_seq_lens_cpu=[DRAFT] * bs,
        extend_prefix_lens_cpu=[*prefixes, *[0] * padding],
        extend_num_tokens=bs * DRAFT,
        positions=torch.zeros(bs * DRAFT, device=device),
        spec_info=spec_info,
        out_cache_loc=torch.zeros(bs * DRAFT, dtype=torch.int64, device=device),
        **({} if host else {"seq_lens_cpu": None}),
    )


def read(metadata: Any, page: int) -> dict[str, Any]:
    """What the kernel reads: of the table, the pages of each row up to the table's width."""
    lengths = metadata.cache_seqlens_int32
    pages = [-(-length // page) for length in lengths.tolist()]
    table = metadata.page_table.to(torch.int32)
    return {
        "lengths": lengths.clone(),
        "starts": metadata.cu_seqlens_k.clone(),
        "queries": metadata.cu_seqlens_q.clone(),
        "most queries": metadata.max_seq_len_q,
        "width": metadata.page_table.shape[1],
        "table": [table[row, :count].clone() for row, count in enumerate(pages)],
    }


def beyond(table: Any, row: int, page: int) -> int:
    """What memory holds for a page of a row, be it past the row's width or the whole table."""
    at = table.storage_offset() + row * table.stride(0) + page
    memory = torch.empty(0, dtype=table.dtype, device=table.device).set_(table.untyped_storage())
    return int(memory[at]) if at < len(memory) else -1


def at_the_limit(mode: str, *, graph: bool, page: int) -> None:
    """A batch that reads past the context; `Different` if pages but its own and padding's."""
    lengths = [CONTEXT + 2, 17, CONTEXT - 2]  # the first one has just ended
    case = {"mode": mode, "lengths": lengths, "graph": graph, "padding": 0}
    what = f"{mode}, {'graph' if graph else 'eager'}, page {page}"
    with served(page) as runner:
        for metadata in prepared(runner, case):
            _check(runner, metadata, page, what)


def _check(runner: Any, metadata: Any, page: int, what: str) -> None:
    rows, table = requests_of(runner, 3), metadata.page_table
    pool = runner.req_to_token_pool.req_to_token
    for row, length in enumerate(metadata.cache_seqlens_int32.tolist()):
        for column in range(-(-length // page)):
            expected = int(pool[rows[row], column * page]) // page
            actual = beyond(table, row, column)
            if actual != expected and (column < table.shape[1] or actual != 0):
                reads = f"request {row} reads page {actual} as its {column}th"
                raise Different(f"{PATCH}: {what}: {reads}, which is {expected}")


CHECKS = {
    "within the context": lambda inputs: same(PATCH, tables, [*EDGES, *inputs(drawn)]),
    "at its limit": limits,
}
