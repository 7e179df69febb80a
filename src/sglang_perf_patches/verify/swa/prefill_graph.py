"""Replayed prefills give the outputs and the KV of stock's graphs, whose attention runs eagerly.

Both sides are captured and replayed by the release's own runner and backend of breakable prefill
graphs, for two attention layers: one with a window and one without. Pools and backend are the
release's, too. Left out is what comes before attention: the runner's buffers, and the model around
the layers. A patched replay runs what its capture took note of, and no Python of a layer.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
from collections.abc import Iterator, Sequence
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
from .. import Different, Inputs, Needless, stock
from ..comparing import same, some
from ..mamba.gdn_prefill_graph import graph_backend
from ..mla import rig
from ..mla.cases import Batch, forward_batch
from ..stock import NoneByDefault
from .window_metadata import Plain, arguments, filled_pools, runner_of

PATCH = "swa.prefill-graph"
_EXECUTOR = "sglang.srt.model_executor"
CONTEXT, ROWS = 1536, 3
LAYERS = {"window": 0, "full": 1}
"""The numbers of the layers, as `stock.window_pools` has them."""


@dataclass(frozen=True)
class Play:
    """Prefills that follow each other, each replayed in the same bucket.

    Attributes:
        batches: new tokens and cached ones of each request of each prefill.
        bucket: tokens of the capture, no less than those of any prefill.
        left: prefills that replay stock's graph, counted from the first; None for any.
        window: what a token attends to on its left.
        width: values of a head.
        page: tokens of a KV page.
        windowed: whether there is a window pool.
        smaller: the next smaller bucket of the server.
    """

    batches: tuple[tuple[tuple[int, int], ...], ...]
    bucket: int
    left: frozenset[int] | None = frozenset()
    window: int = 127
    heads: int = 8
    kv_heads: int = 1
    width: int = 64
    page: int = 1
    windowed: bool = True
    smaller: int = 64


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
        self.runner = self._model_runner()
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
        self.stocks = self._prefill_runner()

    # -- what the tests have of their own, in place of a GPU --------------------------------------

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """Within, the backend captures."""
        torch.cuda.synchronize()  # what it warms up with must be done before
        stream = torch.cuda.Stream()  # a capture can't be on the default stream
        with torch.cuda.stream(stream), self.stocks.backend.capture_session(stream):
            yield
        torch.cuda.synchronize()

    def replaying(self) -> AbstractContextManager[Any]:
        """Within, graphs can be replayed."""
        return contextlib.nullcontext()

    # -- a server ---------------------------------------------------------------------------------

    def capture(self) -> None:
        """Capture the bucket."""
        pools: Any = importlib.import_module(f"{_EXECUTOR}.runner_utils.pool")
        pools.set_global_graph_memory_pool(None)  # see `mamba.gdn_prefill_graph.Runner`
        with self.capturing():
            self.stocks.capture_one_shape(self.wanted.bucket)

    def replay(self, requests: Sequence[tuple[int, int]]) -> tuple[torch.Tensor, bool]:
        """What the layers put out, of shape ``[bucket, …]``, and whether the graph was ours."""
        for layer in self.inputs:
            for held in layer:
                held.copy_(self._random(*held.shape))
        batch = self.batch(requests)
        tokens = batch.extend_num_tokens
        self.slots.zero_()
        self.slots[:tokens].copy_(batch.out_cache_loc)
        static = copy.copy(batch)
        static.out_cache_loc = self.slots
        shape_key: Any = importlib.import_module(f"{_EXECUTOR}.runner.shape_key")
        key = shape_key.ShapeKey(size=self.wanted.bucket)
        graph = self.stocks.backend._graphs[key]
        with self.replaying(), self.stocks.backend.replay_session():
            self.stocks._prepare_forward_metadata_for_replay(batch, static, key)
            is_ours = isinstance(graph, Either) and graph.is_ours
            with self.stocks._prefill_forward_context(
                static, num_tokens=self.wanted.bucket, raw_num_tokens=tokens
            ):
                output: torch.Tensor = self.stocks.backend.replay(key, static)
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

    def _prefill_runner(self) -> Any:
        runner: Any = object.__new__(prefill_cuda_graph_runner.PrefillCudaGraphRunner)
        runner.model_runner = self.runner
        self.runner.attn_backend = self.backend
        runner.use_captured_attn_metadata = False
        runner.capture_num_tokens = [self.wanted.smaller, self.wanted.bucket]
        runner.layer_model, runner.attention_layers = self.layers, [*self.layers]
        for name in (
            *("quant_config", "moe_layers", "moe_fusions", "dsa_indexers", "dllm_attention"),
            *("mha_companion_layers", "enable_cp_bcg_capture", "attn_metadata_buffers"),
            *("_is_full_backend", "_capture_chunked_prefix", "require_mlp_tp_gather"),
        ):
            setattr(runner, name, None)
        runner.backend = graph_backend(runner)
        runner.capture_prepare = self._prepare
        runner._run_forward = self._run
        return runner

    def _prepare(self, size: int) -> tuple[Batch, Any]:
        return self.batch([(size, 0)], captured=True), self.backend

    def _run(self, batch: Any, _: int) -> torch.Tensor:
        with self.stocks._prefill_forward_context(batch):
            pairs = zip(self.layers, self.inputs, strict=True)
            outputs = [layer(*given, batch) for layer, given in pairs]
        return torch.cat(outputs, dim=1)

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._noise).to(self.device, torch.bfloat16)

    def _model_runner(self) -> NoneByDefault:
        wanted, tokens = self.wanted, ROWS * CONTEXT
        full = self.allocator.full_attn_allocator.alloc(tokens).to(torch.int64)
        windowed = self.allocator.swa_attn_allocator.alloc(tokens).to(torch.int64)
        self.allocator.full_to_swa_index_mapping[full] = windowed
        pool, allocator = self.pool, self.allocator
        if not wanted.windowed:
            pool, allocator = _Both(pool), Plain(get_kvcache=NoneByDefault)
        rest = {"device": self.device, "is_draft_worker": False, "kv_cache_dtype_str": "auto"}
        return runner_of(wanted, full.view(ROWS, CONTEXT), pool, allocator, **rest)


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
