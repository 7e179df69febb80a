"""The window metadata of Triton attention and the attention's results equal stock's.

Batches come one after the other. Backend, pools, allocators and kernels are the release's own;
around them stands the runner of `mla.rig`. Each request has a row of slots of the full pool, in
any order, and those of its tokens that have a window slot have one in any order, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from sglang.srt.layers.attention import triton_backend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from .. import Inputs, stock
from ..comparing import same, some
from ..mla import rig
from ..mla.cases import Batch, forward_batch, prepare_backend
from ..stock import NoneByDefault

PATCH = "swa.window-metadata"
CONTEXT = 48
ROWS = 5
KV_HEADS, HEAD_DIM = 2, 8
LAYER = 0
"""One with a window, as `stock.window_pools` has it."""

MODES = ("replayed", "decode", "extend", "mixed")


@dataclass(frozen=True)
class Step:
    """A batch, in one of `MODES`: a graph's replay, or a forward without a graph."""

    mode: str
    lengths: tuple[int, ...]  # of each request's KV before what is computed; in a decode with it
    new: tuple[int, ...] = ()  # how many tokens of each are computed, in a prefill
    padding: int = 0  # rows that a graph is padded with


@dataclass(frozen=True)
class Play:
    """Batches on one backend: what one leaves in a buffer is there when the next comes."""

    steps: tuple[Step, ...]
    window: int = 16  # in tokens, as `page`
    page: int = 1
    windowed: float = 0.75  # tokens of the window pool for each of the full one; 0: no window pool
    seed: int = 0  # of slots, KV and queries


def drawn(random: Random) -> Play:
    """Any lengths, windows and orders, with those that are at an edge more often."""
    window = random.choice((1, 2, 7, 16, 17, CONTEXT, 3 * CONTEXT))
    return Play(
        steps=tuple(_step(random, window) for _ in range(random.randint(1, 6))),
        window=window,
        page=random.choice((1, 1, 16)),
        windowed=random.choice((0.25, 0.75, 0.75, 1.0, 0)),
        seed=random.randint(0, 99),
    )


def _step(random: Random, window: int) -> Step:
    mode = random.choice(("replayed", *MODES))
    count = random.randint(1, ROWS - 1)
    least = 0 if mode in {"extend", "mixed"} else 1
    edges = [each for each in (least, window - 1, window, window + 1) if least <= each <= CONTEXT]
    lengths = tuple(
        random.choice(edges) if random.random() < 0.3 else random.randint(least, CONTEXT)
        for _ in range(count)
    )
    if mode not in {"extend", "mixed"}:
        padding = random.randint(0, ROWS - count) if mode == "replayed" else 0
        return Step(mode, lengths, padding=padding)
    lengths = tuple(min(each, CONTEXT - 4) for each in lengths)
    new = tuple(1 if mode == "mixed" and random.random() < 0.5 else 4 for _ in lengths)
    return Step(mode, lengths, new)


class Windows:
    """The real ``TritonAttnBackend``, and what it reads."""

    def __init__(self, wanted: Play, device: str | None = None) -> None:
        """Build everything, within `furnished`."""
        self.wanted = wanted
        self._device = device or stock.device()
        # The tests name the CPU otherwise, to count what would wait for it.
        self._where = self._device.partition(":")[0]
        self._noise = torch.Generator().manual_seed(wanted.seed)
        self.pool, self.allocator = self._pools()
        mapped = torch.randperm(ROWS * CONTEXT, generator=self._noise).view(ROWS, CONTEXT)
        # As a model has it whose window pool is off: both kinds of layers in one pool.
        self.runner = runner_of(self, mapped, lambda p: p.full_kv_pool, device=self._device)
        self.pool = self.runner.token_to_kv_pool
        self.backend: Any = triton_backend.TritonAttnBackend(self.runner)
        self.backend.init_cuda_graph_state(ROWS, ROWS)
        shape = (self.backend.num_head, HEAD_DIM, HEAD_DIM**-0.5, self.backend.num_kv_head)
        self.layer: Any = RadixAttention(*shape, LAYER, sliding_window_size=wanted.window)

    def capture(self, step: Step) -> None:
        """Make the backend prepare the capture of a graph for batches like this one."""
        begun = self.batch(replace(step, lengths=(1,) * len(step.lengths)))
        prepare_backend(self.backend, begun, capture=True)

    def prepare(self, step: Step, batch: Batch) -> None:
        """Make the backend prepare a batch, whose graph is captured if it has one."""
        if step.mode == "replayed":
            prepare_backend(self.backend, batch)
        else:
            self.backend.init_forward_metadata(batch)

    def read(self, step: Step) -> dict[str, Any]:
        """Prepare a batch; returns its window metadata and what attention computes from it."""
        batch = self.batch(step)
        if step.mode == "replayed":
            self.capture(step)
        self.prepare(step, batch)
        told, rows = self.backend.forward_metadata, batch.batch_size
        filled, cells = int(told.window_kv_indptr[rows]), told.window_kv_indices
        found = {
            "offsets": self.backend.window_kv_indptr.clone(),
            "filled": cells[:filled].clone(),
            # All of a graph's buffer: also what no kernel reads.
            "buffer": self.backend.cuda_graph_window_kv_indices.clone(),
            "dtype": str(cells.dtype),
        }
        if told.window_num_kv_splits is not None:
            found["splits"] = told.window_num_kv_splits[:rows].clone()
        if told.window_kv_offsets is not None:
            found["starts"] = told.window_kv_offsets[:rows].clone()
        return {**found, "output": self._attend(step, batch)}

    def _attend(self, step: Step, batch: Batch) -> Any:
        tokens = sum(step.new) or batch.batch_size
        heads = self.layer.tp_q_head_num, self.layer.tp_k_head_num
        q = self._random(tokens, heads[0] * HEAD_DIM)
        k, v = (self._random(tokens, heads[1] * HEAD_DIM).view(tokens, -1, HEAD_DIM) for _ in "kv")
        forward = self.backend.forward_extend if step.new else self.backend.forward_decode
        return forward(q, k, v, self.layer, batch, save_kv_cache=False)

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._noise).to(self._where)

    def batch(self, step: Step) -> Batch:
        """The forward batch of a step, as the scheduler gives it to the backend."""
        lengths = torch.tensor([*step.lengths, *[1] * step.padding], device=self._where)
        noise = torch.Generator().manual_seed(self.wanted.seed)
        rows = torch.randperm(ROWS, generator=noise)[: len(step.lengths)]
        rows = torch.cat([rows, rows.new_zeros(step.padding)]).to(self._where)
        fields: dict[str, Any] = {
            "positions": lengths.new_zeros(sum(step.new) or len(rows)),
            "token_to_kv_pool": self.pool,
            "attn_backend": self.backend,
        }
        table = self.runner.req_to_token_pool.req_to_token
        mode = ForwardMode.DECODE
        if step.new:
            mode = ForwardMode.MIXED if step.mode == "mixed" else ForwardMode.EXTEND
            new = lengths.new_tensor(step.new)
            requests = zip(rows.tolist(), step.lengths, step.new, strict=True)
            slots = [table[row, length : length + count] for row, length, count in requests]
            fields |= {
                "extend_prefix_lens": lengths,
                "extend_prefix_lens_cpu": [*step.lengths],
                "extend_seq_lens": new,
                "extend_seq_lens_cpu": [*step.new],
                "extend_start_loc": torch.cumsum(new, 0) - new,
                "extend_num_tokens": sum(step.new),
                "out_cache_loc": torch.cat(slots).to(torch.int64),
            }
            lengths = lengths + new
        else:
            fields["out_cache_loc"] = table[rows, lengths - 1].to(torch.int64)
        return forward_batch(self.runner, mode, rows, lengths, **fields)

    def _pools(self) -> tuple[Any, Any]:
        tokens, page = ROWS * CONTEXT, self.wanted.page
        windowed = int(tokens * (self.wanted.windowed or 1.0)) // page * page
        shape = {"heads": KV_HEADS, "head_dim": HEAD_DIM, "device": self._where}
        return filled_pools(tokens, windowed, page, torch.float32, self._noise, **shape)


class Plain(NoneByDefault):
    """An allocator without windows: an attribute that it lacks it does not have."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def filled_pools(
    full: int, windowed: int, page: int, dtype: Any, noise: torch.Generator, **shape: Any
) -> tuple[Any, Any]:
    """As `stock.window_pools`, with noise for KV, and pages that are given in any order."""
    pool, allocator = stock.window_pools(full, windowed, page, dtype, **shape)
    for part in (allocator.full_attn_allocator, allocator.swa_attn_allocator):
        order = torch.randperm(len(part.free_pages), generator=noise)
        part.free_pages = part.free_pages[order.to(part.free_pages.device)]
    for part in (pool.full_kv_pool, pool.swa_kv_pool):
        for buffer in (*part.k_buffer, *part.v_buffer):
            buffer.copy_(torch.randn(*buffer.shape, generator=noise))
    return pool, allocator


def runner_of(
    of: Any, mapped: torch.Tensor, one_pool: Callable[[Any], Any], **attributes: Any
) -> NoneByDefault:
    """The runner of a rig whose pools are full: each request has a row of slots of the full pool.

    `mapped`, of shape ``(requests, context)``, has these slots' numbers in the order in which they
    are mapped to the window pool, as far as that has as many. In a play without a window pool,
    `one_pool` makes the pool of both kinds of layers.
    """
    wanted, pool, allocator = of.wanted, of.pool, of.allocator
    rows, context = mapped.shape
    full = allocator.full_attn_allocator.alloc(mapped.numel()).to(torch.int64)
    windowed = allocator.swa_attn_allocator.alloc(pool.size_swa).to(torch.int64)
    some = mapped.flatten()[: len(windowed)].to(full.device)
    allocator.full_to_swa_index_mapping[full[some]] = windowed[: len(some)]
    if not wanted.windowed:
        pool, allocator = one_pool(pool), Plain(get_kvcache=NoneByDefault)
    slots = full.view(rows, context).to(torch.int32).contiguous()
    return rig.model_runner(
        arguments(wanted),
        context=context,
        requests=rows,
        sliding_window_size=wanted.window,
        req_to_token_pool=NoneByDefault(size=rows, req_to_token=slots),
        token_to_kv_pool=pool,
        token_to_kv_pool_allocator=allocator,
        **attributes,
    )


def arguments(wanted: Any) -> NoneByDefault:
    """The options of a server without speculation: of a play's `page`, and whether `windowed`."""
    return rig.server_args(
        page_size=wanted.page,
        triton_attention_num_kv_splits=2,
        speculative_algorithm=None,
        speculative_num_draft_tokens=None,
        speculative_num_steps=None,
        speculative_eagle_topk=None,
        disable_hybrid_swa_memory=not wanted.windowed,
        get_model_config=lambda: NoneByDefault(hf_text_config=NoneByDefault()),
    )


def furnished(wanted: Play) -> Any:
    """The process's context, in which a backend is built and asked."""
    return rig.furnished(arguments(wanted), triton_backend.__name__)


def play(wanted: Play) -> list[dict[str, Any]]:
    """The window metadata of each batch, and what attention computes."""
    with furnished(wanted):
        windows = Windows(wanted)
        return [windows.read(step) for step in wanted.steps]


EDGES: Sequence[Play] = (
    # A long batch leaves slots behind that a short one does not overwrite.
    Play((Step("replayed", (45, 40, 30)), Step("replayed", (3,)), Step("replayed", (45,)))),
    Play((Step("replayed", (33, 3)), Step("decode", (33, 3))), page=16),
    Play((Step("replayed", (16, 17, 15)), Step("decode", (16, 17, 15)))),
    Play((Step("extend", (0, 0), (4, 4)), Step("extend", (0, 40), (4, 4)))),
    Play((Step("decode", (CONTEXT,) * ROWS), Step("replayed", (CONTEXT,) * ROWS)), window=1),
)


def batches(inputs: Inputs) -> int:
    """Batches one after the other, by graph and without."""
    stock.publish_server()
    return same(PATCH, play, [*some(inputs, EDGES), *inputs(drawn)])


CHECKS = {"batches": batches}
