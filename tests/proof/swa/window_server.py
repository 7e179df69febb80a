"""A real server's scheduler on the CPU, in this process, with a small model of random weights.

Scheduler, prefix cache, pools, attention backend and model are the release's. Its loop is stepped
from outside, and requests come without sockets. FlashAttention 3's kernel, which needs a GPU, has a
stand-in that reads the same cells of the same buffers by the page table that it is given. The free
slots of the window pool are shuffled, so that no slot has the number of its token's other one.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import importlib
import json
import os
import random
import signal
import tempfile
import zlib
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import zmq

import sglang_perf_patches
from linux_mlx.patience import limit_s
from sglang_perf_patches.live import published
from sglang_perf_patches.model.setups import FEATURES
from sglang_perf_patches.verify import stock
from sglang_perf_patches.verify.comparing import require
from tests.proof.swa import window_models

MOST_ROUNDS = 6000
FLASH = "sglang.srt.layers.attention.flashattention_backend"
_FOLDER = Path(tempfile.gettempdir()) / f"window-models-{os.getpid()}"

Ids = Sequence[int]


class WindowServer:
    """The release's scheduler.

    `logits` has the row of logits of each token of a request, `batches` of each step its kind, and
    for each request what it computed and what it had.
    """

    def __init__(
        self, model: str = "gemma-3", /, *, rank: int = 0, port: int = 0, **asked: Any
    ) -> None:
        """Boot a scheduler: of tensor-parallel ranks, which meet at `port`, the one of that number.

        Arguments of the server named ``model_…`` change the configuration.
        """
        prepare()
        self._ran = limit if port else lambda: None
        self._ran()
        own = {name: value for name, value in asked.items() if name.startswith("model_")}
        asked = {name: value for name, value in asked.items() if name not in own}
        changes = {name.removeprefix("model_"): value for name, value in own.items()}
        self.logits: dict[str, list[Any]] = {}
        self.reqs: dict[str, Any] = {}
        self.batches: list[Any] = []
        self._made = 0
        arguments = importlib.import_module("sglang.srt.server_args")
        settings = {
            "model_path": window_models.write(_FOLDER, model, **changes),
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "device": "cpu",
            "dtype": "float32",
            "attention_backend": "fa3",
            "sampling_backend": "pytorch",
            "grammar_backend": "none",
            "max_total_tokens": 2048,
            "max_running_requests": 8,
            "chunked_prefill_size": 64,
            "random_seed": 1,
            "log_level": "critical",
            "disable_cuda_graph": True,
            "disable_overlap_schedule": True,
            **stock.EXTRA_ARGUMENTS,
            **asked,
        }
        made = stock.arguments(**settings)
        # Stock draws the port, and each server seeds the draws: two processes would get the same.
        random.seed()
        ports = arguments.PortArgs.init_new(made)
        ports.nccl_port = port or ports.nccl_port
        context = importlib.import_module("sglang.srt.runtime_context")
        ranks: dict[str, Any] = {}
        if hasattr(context, "SpawnRanks"):  # up to 0.5.20 a scheduler is told
            ranks["ranks"] = context.SpawnRanks(world_rank=rank, dp_rank=None, gpu_id=rank)
        context.publish(made, role="scheduler", **ranks)
        module = importlib.import_module("sglang.srt.managers.scheduler")
        others = dict.fromkeys(("pp_rank", "attn_cp_rank", "moe_dp_rank"), 0)
        others["moe_ep_rank"] = rank * made.ep_size // made.tp_size
        told = {"gpu_id": rank, "tp_rank": rank, "dp_rank": None, **others}
        # Its thread would hold the scheduler, and so the groups, whose threads poll.
        with mock.patch.object(module, "create_scheduler_watchdog"):
            self.scheduler: Any = stock.called(module.Scheduler, made, ports, **told)
        self.runner = self.scheduler.tp_worker.model_runner
        _fill(self.runner.model)
        if self.has_window_pool:
            allocator = self.scheduler.token_to_kv_pool_allocator.swa_attn_allocator
            same = torch.Generator().manual_seed(0)
            order = torch.randperm(len(allocator.free_pages), generator=same)
            allocator.free_pages = allocator.free_pages[order]
        self._run: Callable[..., Any] = self.scheduler.run_batch
        self.scheduler.run_batch = self._run_batch

    def close(self) -> None:
        """Let another one boot in this process."""
        state = importlib.import_module("sglang.srt.distributed.parallel_state")
        state.destroy_model_parallel()
        state.destroy_distributed_environment()
        for each in gc.get_objects():
            if issubclass(type(each), zmq.Context):
                each.destroy(linger=0)  # else it waits, once it is freed, for what nobody reads
        gc.collect()

    def submit(
        self, ids: Ids, new: int, rid: str = "", *, images: Any = None, **sampling_options: Any
    ) -> None:
        """A request for so many tokens, greedily; it gets a name if it has none."""
        kinds = importlib.import_module("sglang.srt.managers.io_struct")
        sampling = importlib.import_module("sglang.srt.sampling.sampling_params").SamplingParams
        options = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        params = sampling(**options | sampling_options)
        params.normalize(None)
        self._made += 1
        request = kinds.TokenizedGenerateReqInput(
            rid=rid or f"r{self._made}",
            input_text=None,
            input_ids=array("q", ids),
            input_embeds=None,
            mm_inputs=images,
            token_type_ids=None,
            sampling_params=params,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            token_ids_logprob=None,
            stream=False,
        )
        self.scheduler.process_input_requests([request])

    def abort(self, rid: str) -> None:
        kinds = importlib.import_module("sglang.srt.managers.io_struct")
        self.scheduler.process_input_requests([kinds.AbortReq(rid=rid)])

    def serve(self, comes: Callable[[int], bool] = lambda _: False) -> None:
        """Run the release's own loop, with its check of the pools after each round.

        Before each round `comes` gets its number, and answers whether more comes.
        """
        scheduler, rounds = self.scheduler, [0]

        def ingest_requests(*_: Any, **__: Any) -> list[Any]:
            require(rounds[0] < MOST_ROUNDS, "a request waits for ever")
            more = comes(rounds[0])
            rounds[0] += 1
            if not more and scheduler.is_fully_idle():
                scheduler.gracefully_exit = True
            return []

        scheduler.ingest_requests = ingest_requests
        scheduler.gracefully_exit = False
        scheduler.run_event_loop()

    def tokens(self, rid: str) -> list[int]:
        return [int(token) for token in self.reqs[rid].output_ids]

    def cached(self, rid: str) -> int:
        """Tokens of its prompt that the prefix cache had, by its last prefill."""
        return int(self.reqs[rid].cached_tokens)

    def _run_batch(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        reqs = list(batch.reqs)
        kind, computed, had = "decode", [], []
        if batch.forward_mode.is_extend():
            kind, computed, had = "prefill", batch.extend_lens, batch.prefix_lens
        rids = [req.rid for req in reqs]
        self.batches.append((kind, rids, [*map(int, computed)], [*map(int, had)]))
        result = self._run(batch, *args, **kwargs)
        self._ran()
        rows = result.logits_output.next_token_logits
        for req, row in zip(reqs, rows if rows is not None else [], strict=False):
            self.reqs[req.rid] = req
            self.logits.setdefault(req.rid, []).append(row.clone())
        return result

    @property
    def retractions(self) -> int:
        return sum(int(req.retraction_count) for req in self.reqs.values())

    @property
    def has_window_pool(self) -> bool:
        kind = importlib.import_module("sglang.srt.mem_cache.swa_memory_pool").SWAKVPool
        return isinstance(self.runner.token_to_kv_pool, kind)

    def windowed_layers(self) -> list[int]:
        """Layers whose attention has a window, as the model made them."""
        kind = importlib.import_module("sglang.srt.layers.radix_attention").RadixAttention
        return sorted(
            each.layer_id
            for each in self.runner.model.modules()
            if isinstance(each, kind) and each.sliding_window_size not in (None, -1)
        )

    def check_drained(self) -> None:
        scheduler = self.scheduler
        require(scheduler.flush_cache(), "the cache can't be emptied")
        allocator = scheduler.token_to_kv_pool_allocator
        if not self.has_window_pool:
            require(allocator.available_size() == allocator.size, "slots are lost")
            return
        free = allocator.full_available_size(), allocator.swa_available_size()
        sizes = self.runner.max_total_num_tokens, self.runner.swa_max_total_num_tokens
        require(free == sizes, f"of {sizes} slots {free} are free")
        mapped = allocator.full_to_swa_index_mapping[:-1]
        require(not mapped.any(), "slots of the window pool are still mapped")


def checksum(held: torch.Tensor) -> int:
    return zlib.crc32(held.contiguous().view(torch.uint8).numpy().tobytes())


def tell(patch: str, **told: Any) -> None:
    """Print as JSON what a rank found, the state of its patch and what its server has on."""
    report = sglang_perf_patches.report()
    state = report.of(patch) if report else None
    told["patch"] = [state.state, state.reason] if state else ["off", ""]
    told["on"] = sorted(FEATURES.of(published.published()))
    print(json.dumps(told), flush=True)


def limit() -> None:
    """End this rank with a traceback if the next call does not come: it may wait for ever.

    Python's own timer is a thread, for which a fork would wait for ever.
    """
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(int(limit_s(30)))


def _fill(model: Any) -> None:
    """Weights that the outputs depend on, the same in every server: stock's dummies are tiny."""
    for name, value in model.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        with torch.no_grad():
            if value.dim() >= 2:
                value.normal_(0, value.shape[-1] ** -0.5, generator=generator)
            else:
                value.uniform_(0.5, 1.0, generator=generator)


@functools.cache
def prepare() -> None:
    """Import what a patch changes, and give what a CPU without sglang's kernels lacks."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY"] = "1"
    importlib.import_module("sglang.srt.managers.scheduler")
    rotary: Any = importlib.import_module("sglang.srt.layers.rotary_embedding.base")
    rotary._is_cpu = True
    registry = importlib.import_module("sglang.srt.layers.attention.attention_registry")
    registry.ATTENTION_BACKENDS["fa3"] = _flash


def _flash(runner: Any) -> Any:
    module: Any = importlib.import_module(FLASH)
    module.flash_attn_with_kvcache = flash_attn_with_kvcache
    backend = module.FlashAttentionBackend(runner)
    backend._get_scheduler_metadata = lambda *_, **__: None
    return backend


def flash_attn_with_kvcache(
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float = 0.0,
    out: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """In the place of FlashAttention 3's: the same cells by the same table, in the same order."""
    result = torch.empty_like(q) if out is None else out.view_as(q)
    for row, length in enumerate(cache_seqlens.tolist()):
        start, end = int(cu_seqlens_q[row]), int(cu_seqlens_q[row + 1])
        pages = page_table[row, : -(-length // k_cache.shape[1])].long()
        about = (length, softmax_scale, window_size[0], softcap, causal)
        result[start:end] = attended(q[start:end], k_cache[pages], v_cache[pages], *about)
    return result


def attended(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    length: int,
    scale: float,
    window: int,
    softcap: float = 0.0,
    causal: bool = True,
) -> torch.Tensor:
    """What the last tokens of a request, of `length`, attend to in its pages, in float32."""
    keys, values = (
        pages.flatten(0, 1)[:length].float().repeat_interleave(q.shape[1] // pages.shape[2], 1)
        for pages in (k_pages, v_pages)
    )
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(length - len(q), length).view(-1, 1)
    other = torch.arange(length).view(1, -1)
    hidden = (other > at) & causal
    if window >= 0:
        hidden |= other < at - window
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values)
