"""Replayed prefills give the outputs and the KV of stock's graphs, whose attention runs eagerly.

Both sides are captured and replayed as in `prefill_graphs`, for two attention layers: one with a
window and one without. Pools and the attention backend are the release's, too. A patched replay
runs what its capture took note of, and no Python of a layer.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from sglang.srt.layers.attention import flashattention_backend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.runner import prefill_cuda_graph_runner

from ...sets.swa.prefill_graph.body import Either
from .. import Different, Inputs, Needless, prefill_graphs, stock
from ..comparing import same, some
from ..mla import rig
from ..mla.cases import Batch, forward_batch
from .window_metadata import arguments, filled_pools, runner_of

PATCH = "swa.prefill-graph"
CONTEXT, ROWS = 1536, 3
LAYERS = {"window": 0, "full": 1}
"""The numbers of the layers, as `stock.window_pools` has them."""


@dataclass(frozen=True)
class Play:
    """Prefills that follow each other, each replayed in the same bucket."""

    batches: tuple[tuple[tuple[int, int], ...], ...]  # new and cached tokens of their requests
    bucket: int  # tokens of the capture, no less than those of any prefill
    left: frozenset[int] | None = frozenset()  # those that replay stock's graph; None: any
    window: int = 127  # what a token attends to on its left
    heads: int = 8
    kv_heads: int = 1
    width: int = 64  # values of a head
    page: int = 1  # in tokens
    windowed: bool = True  # whether there is a window pool
    smaller: int = 64  # the next smaller bucket of the server


GEMMA: dict[str, Any] = {
    "window": 1023,
    "heads": 4,
    "kv_heads": 2,
    "width": 256,
    "windowed": False,
    "smaller": 80,
}
EDGES: Sequence[Play] = (
    # Two requests and a long prefix between prompts that fit; the last one fills the bucket.
    Play(
        (((130, 0),), ((60, 0), (60, 0)), ((90, 60),), ((2, 900),), ((144, 0),)),
        144,
        frozenset({1, 3}),
    ),
    Play((((480, 0),), ((480, 64),), ((512, 0),)), 512, None, smaller=448),
    Play((((100, 0),), ((90, 0),)), 112, **GEMMA),
    Play((((510, 0),), ((500, 700),)), 512, None, **{**GEMMA, "smaller": 480}),
    Play((((130, 0),), ((100, 128),)), 192, page=64),
)


def drawn(random: Random) -> Play:
    """One or two prefills of one request, and sometimes one of two."""
    bucket = random.choice((8, 48, 144, 320))
    batches = []
    for _ in range(random.randint(1, 3)):
        new = random.randint(1, bucket)
        cut = random.randint(1, new) if random.random() < 0.2 else 0
        news = [each for each in (new - cut, cut) if each]
        batches.append(tuple((each, random.choice((0, 0, 1, 70, 300))) for each in news))
    shape = random.choice(({}, {"windowed": False}, {"window": 16}, {"page": 16}))
    return Play(tuple(batches), bucket, None, **shape, smaller=bucket // 2)


class Rig:
    """Two layers, their backend and pools, and the release's runner."""

    def __init__(self, wanted: Play) -> None:
        """Build everything, within `furnished`."""
        self.wanted = wanted
        self.device = stock.device()
        self._noise = torch.Generator().manual_seed(wanted.bucket)
        sizes = (ROWS * CONTEXT, ROWS * CONTEXT, wanted.page, torch.bfloat16)
        kv: Any = {"heads": wanted.kv_heads, "head_dim": wanted.width, "device": self.device}
        self.pool, self.allocator = filled_pools(*sizes, self._noise, **kv)
        rest: Any = {"is_draft_worker": False, "kv_cache_dtype_str": "auto"}
        slots = torch.arange(ROWS * CONTEXT).view(ROWS, CONTEXT)
        self.runner = runner_of(self, slots, _Both, device=self.device, **rest)
        self.backend: Any = flashattention_backend.FlashAttentionBackend(self.runner)
        shape = (wanted.heads, wanted.width, wanted.width**-0.5, wanted.kv_heads)
        windows = {"window": wanted.window, "full": -1}
        self.layers = torch.nn.ModuleList(
            RadixAttention(*shape, number, sliding_window_size=windows[kind])
            for kind, number in LAYERS.items()
        )
        heads = (wanted.heads, wanted.kv_heads, wanted.kv_heads)
        self.inputs = [
            [self._random(wanted.bucket, count * wanted.width) for count in heads] for _ in LAYERS
        ]
        self.slots = torch.zeros(wanted.bucket, dtype=torch.int64, device=self.device)
        self.runner.attn_backend = self.backend
        self.stocks = prefill_graphs.runner_of(
            self.runner,
            use_captured_attn_metadata=False,
            capture_num_tokens=[wanted.smaller, wanted.bucket],
            layer_model=self.layers,
            attention_layers=[*self.layers],
            capture_prepare=lambda size: (self.batch([(size, 0)], captured=True), self.backend),
            _run_forward=self._run,
        )

    # -- what the tests have of their own, in place of a GPU --------------------------------------

    def capturing(self) -> AbstractContextManager[Any]:
        """Within, the backend captures."""
        return prefill_graphs.capturing(self.stocks.backend)

    def replaying(self) -> AbstractContextManager[Any]:
        """Within, graphs can be replayed."""
        return contextlib.nullcontext()

    # -- a server ---------------------------------------------------------------------------------

    def capture(self) -> None:
        """Capture the bucket."""
        prefill_graphs.capture(self.stocks, self.wanted.bucket, self.capturing())

    def replay(self, requests: Sequence[tuple[int, int]]) -> tuple[torch.Tensor, bool]:
        """What the layers put out, of shape ``[bucket, …]``, and whether the graph was ours."""
        for layer in self.inputs:
            for held in layer:
                held.copy_(self._random(*held.shape))
        batch = self.batch(requests)
        self.slots.zero_()
        self.slots[: batch.extend_num_tokens].copy_(batch.out_cache_loc)
        static = copy.copy(batch)
        static.out_cache_loc = self.slots
        with self.replaying():
            bucket = self.wanted.bucket
            output, is_ours = prefill_graphs.replay(self.stocks, bucket, batch, static)
        return output.clone(), is_ours

    def kv(self) -> list[torch.Tensor]:
        """All KV but that of the page where rows without a token are written."""
        full, windowed = self.pool.full_kv_pool, self.pool.swa_kv_pool
        buffers = (*full.k_buffer, *full.v_buffer, *windowed.k_buffer, *windowed.v_buffer)
        return [buffer[self.wanted.page :].clone() for buffer in buffers]

    def batch(self, requests: Sequence[tuple[int, int]], *, captured: bool = False) -> Batch:
        """A plain prefill of the first requests of the pool."""
        new = torch.tensor([each for each, _ in requests], device=self.device)
        before = torch.tensor([each for _, each in requests], device=self.device)
        table = self.runner.req_to_token_pool.req_to_token
        slots = [table[row, old : old + count] for row, (count, old) in enumerate(requests)]
        tokens = int(new.sum())
        batch = forward_batch(
            self.runner,
            ForwardMode.EXTEND,
            torch.arange(len(requests), device=self.device),
            before + new,
            extend_seq_lens=new,
            extend_seq_lens_cpu=new.tolist(),
            extend_prefix_lens=before,
            extend_prefix_lens_cpu=before.tolist(),
            extend_num_tokens=tokens,
            global_num_token_non_padded_cpu=tokens,
            positions=torch.zeros(tokens, dtype=torch.int64, device=self.device),
            out_cache_loc=self.slots if captured else torch.cat(slots).to(torch.int64),
            out_cache_loc_is_physical=False,
        )
        translator = self.runner.kv_index_translator
        translator.own_plan(batch, runner_slots=captured).bind(batch, translator)
        return batch

    def _run(self, batch: Any, _: int) -> torch.Tensor:
        with self.stocks._prefill_forward_context(batch):
            pairs = zip(self.layers, self.inputs, strict=True)
            outputs = [layer(*given, batch) for layer, given in pairs]
        return torch.cat(outputs, dim=1)

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._noise).to(self.device, torch.bfloat16)


class _Both:
    """Both kinds of layers in one pool of tokens, as of a model without a window pool."""

    layer_transfer_counter = None

    def __init__(self, pool: Any) -> None:
        self._parts = {0: pool.swa_kv_pool, 1: pool.full_kv_pool}

    def get_kv_buffer(self, layer: int) -> Any:
        return self._parts[layer].get_kv_buffer(0)

    def set_kv_buffer(self, layer: Any, where: Any, k: Any, v: Any, *scales: Any) -> None:
        self._parts[layer.layer_id].set_kv_buffer(None, where, k, v, layer_id_override=0)


def furnished(wanted: Play) -> Any:
    """The process's context, in which a rig is built and asked."""
    modules = (flashattention_backend.__name__, prefill_cuda_graph_runner.__name__)
    return rig.furnished(arguments(wanted), *modules)


def play(wanted: Play, make: Any = Rig) -> dict[str, Any]:
    """Outputs and KV of each prefill; `Different` if one replayed another graph than wanted."""
    with furnished(wanted):
        server = make(wanted)
        server.capture()
        graphs = server.stocks.backend._graphs.values()
        is_patched = any(isinstance(each, Either) for each in graphs)
        found = []
        for number, requests in enumerate(wanted.batches):
            output, is_ours = server.replay(requests)
            left = wanted.left is not None and number in wanted.left
            if is_patched and wanted.left is not None and is_ours == left:
                raise Different(f"{wanted!r}: prefill {number} replayed the other graph")
            found.append({"output": output, "kv": server.kv()})
    return {"prefills": found}


def replays(inputs: Inputs) -> int:
    """Prefills one after the other."""
    if stock.device() == "cuda" and torch.cuda.get_device_capability()[0] != 9:
        raise Needless("FlashAttention 3 is for Hopper GPUs")
    stock.publish_server()
    return same(PATCH, play, [*some(inputs, EDGES), *inputs(drawn)])


CHECKS = {"replays": replays}
