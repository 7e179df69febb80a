"""The graph's kernel alone writes the same metadata as the eager build followed by that kernel."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from random import Random
from typing import Any

import torch
from sglang.srt.speculative import eagle_draft_extend_cuda_graph_runner as runners

from ..comparing import same
from ..stock import NoneByDefault
from . import flash
from .cases import requests_of, some_lengths
from .rig import furnished

PATCH = "mla.draft-extend-metadata"
CAPTURED = 6
RUNNER = runners.EAGLEDraftExtendCudaGraphRunner
TAKES_ROWS = "select_index" in RUNNER.execute.__code__.co_varnames

Case = dict[str, Any]

EDGES: tuple[Case, ...] = (
    {"rounds": [[40, 7], [41, 9], [3] * 6], "page": 1},
    {"rounds": [[120], [1, 16, 17], [246]], "page": 16},
    {"rounds": [[33, 9, 2]], "page": 4},
)


def drawn(random: Random) -> Case:
    """Draft-extends of one server, one after the other."""
    return {
        "rounds": [some_lengths(random, CAPTURED) for _ in range(random.randint(1, 3))],
        "page": random.choice([1, 4, 16]),
    }


def replays(case: Case) -> list[Any]:
    """What the kernel reads in each replay, by stock's ``execute``."""
    with furnished(flash.arguments(case["page"]), flash.module.__name__, runners.__name__):
        runner = flash.runner_of(case["page"])
        backend = flash.make(runner)
        graphs = make(runner, backend)
        read_by_kernel: list[Any] = []
        for lengths in case["rounds"]:
            read: list[Any] = []
            graphs.backend.read = read.append
            replaying(graphs, runner, lengths)()
            metadata = backend.draft_extend_metadata[read[0]]
            read_by_kernel.append(flash.read(metadata, case["page"], len(lengths)))
            held = backend.forward_metadata is backend.draft_extend_metadata[graphs.bs]
            read_by_kernel.append((held, backend.forward_metadata.max_seq_len_k))
        return read_by_kernel


def make(runner: NoneByDefault, backend: Any) -> Any:
    """Stock's runner with its buffers, whose graphs are what they would replay."""
    graphs = RUNNER.__new__(RUNNER)
    device, width = runner.device, flash.DRAFT
    runner.model_config.model_is_mrope = False
    graphs.model_runner, graphs.draft_extend_attn_backend = runner, backend
    graphs.attn_backend, graphs.forward_mode = backend, flash.EXTEND
    graphs.captured_req_width = graphs.num_tokens_per_bs = width
    graphs.capture_bs, graphs.max_bs = [*range(1, CAPTURED + 1, 2), CAPTURED], CAPTURED
    graphs.seq_len_fill_value = 1
    graphs.extend_seq_lens_cpu = [width] * CAPTURED
    graphs.require_mlp_tp_gather = graphs.require_gathered_buffer = False
    graphs.deepep_adapter = NoneByDefault(replay=lambda: None)
    graphs.model_context = nullcontext
    graphs.device_module = NoneByDefault(Event=lambda: NoneByDefault(record=lambda: None))
    backend.init_cuda_graph_state(CAPTURED, CAPTURED * width)
    tokens = CAPTURED * width

    def zeros(count: int, dtype: Any = torch.int64) -> Any:
        return torch.zeros(count, dtype=dtype, device=device)

    graphs.buffers = NoneByDefault(
        input_ids=zeros(tokens),
        req_pool_indices=zeros(CAPTURED),
        out_cache_loc=zeros(tokens),
        positions=zeros(tokens),
        mrope_positions=torch.zeros((3, tokens), dtype=torch.int64, device=device),
        seq_lens=zeros(CAPTURED) + 1,
        seq_lens_cpu=torch.ones(CAPTURED, dtype=torch.int64),
        extend_seq_lens=zeros(CAPTURED, torch.int32) + width,
        num_correct_drafts=zeros(CAPTURED, torch.int32),
        num_accept_tokens=zeros(CAPTURED, torch.int32),
        select_index=zeros(CAPTURED),
    )
    for bs in dict.fromkeys(graphs.capture_bs):
        backend.init_forward_metadata_out_graph(in_graph(graphs, bs), in_capture=True)
    graphs.backend = _Replayed(graphs)
    return graphs


def in_graph(graphs: Any, bs: int) -> Any:
    """The batch of the buffers that a graph of this size was captured on."""
    buffers, tokens = graphs.buffers, bs * flash.DRAFT
    spec_info = NoneByDefault(
        num_tokens_per_req=flash.DRAFT, extend_seq_lens_cpu=[flash.DRAFT] * bs
    )
    return NoneByDefault(
        batch_size=bs,
        forward_mode=flash.EXTEND,
        req_pool_indices=buffers.req_pool_indices,
        seq_lens=buffers.seq_lens[:bs],
        extend_seq_lens=buffers.extend_seq_lens[:bs],
        positions=buffers.positions[:tokens],
        out_cache_loc=buffers.out_cache_loc[:tokens],
        spec_info=spec_info,
    )


class _Replayed:
    """In place of a runner's graphs: a replay runs what the graph begins with, on the buffers."""

    def __init__(self, graphs: Any) -> None:
        self._graphs = graphs
        self.read: Any = lambda size: None

    def replay(self, key: Any, _batch: Any) -> Any:
        size = getattr(key, "size", key)
        graphs = self._graphs
        graphs.draft_extend_attn_backend.init_forward_metadata_in_graph(in_graph(graphs, size))
        self.read(size)
        device = graphs.model_runner.device
        rows = torch.zeros(size * flash.DRAFT, 2, device=device)
        return NoneByDefault(next_token_logits=rows, hidden_states=rows)


def replaying(graphs: Any, runner: NoneByDefault, prefixes: list[int]) -> Callable[[], object]:
    """What replays a draft-extend of these prefixes by stock's ``execute``."""
    count, width, device = len(prefixes), flash.DRAFT, runner.device
    tokens = count * width
    lengths = torch.tensor(prefixes, dtype=torch.int64, device=device) + width
    ints = torch.full((count,), width, dtype=torch.int32, device=device)
    batch = NoneByDefault(
        batch_size=count,
        input_ids=torch.zeros(tokens, dtype=torch.int64, device=device),
        out_cache_loc=torch.zeros(tokens, dtype=torch.int64, device=device),
        positions=torch.zeros(tokens, dtype=torch.int64, device=device),
        req_pool_indices=requests_of(runner, count),
        seq_lens=lengths,
        extend_seq_lens=ints,
        extend_seq_lens_cpu=[width] * count,
        spec_info=NoneByDefault(num_correct_drafts=ints - 1, num_accept_tokens=ints),
    )
    rows = (torch.arange(count, device=device) * width,) if TAKES_ROWS else ()
    return lambda: graphs.execute(batch, *rows)


CHECKS = {"replays": lambda inputs: same(PATCH, replays, [*EDGES, *inputs(drawn)])}
"""By stock's own runner."""
