"""What a hybrid model's server is made of, all the release's own.

Its pools, prefix caches, arguments and scheduler; what a decode allocates, which slots it tracks
into, and what is done with its result. How many tokens a verify accepts is drawn.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import zlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from sglang_perf_patches.verify.mamba.rig import publish, request_pool
from sglang_perf_patches.verify.stock import MEMORY, NoneByDefault, called
from tests.proof.caches import cache_params, unified_cache
from tests.proof.requests import speculation

VOCABULARY = 1000
_MANAGERS = "sglang.srt.managers"


@dataclass(frozen=True)
class Shape:
    """The settings of a server."""

    tree: str  # "radix", the cache for such models alone, or "unified"
    # States are tracked in extra buffers, in pages of 64 tokens; otherwise pages have one token,
    # and a state is cached where a prefill ends.
    tracked: bool
    slots: int  # for states
    tokens: int = 64 * 200  # of KV
    rows: int = 8
    chunk: int = 256  # most tokens of a prefill
    overlap: bool = True  # a prefill is made before the results of the last one are there
    context: int = 4096
    lazy: bool = False  # a tracked request gets its second buffer only where it reaches a boundary
    drafts: int = 0  # most tokens that a verify accepts; 0 without speculation
    branches: int = 1  # drafts that branch from a token
    # Rounds until a prefill server's KV was sent, while the request holds its slots; 0 for a server
    # that decodes.
    transfer: int = 0

    @property
    def strategy(self) -> str:
        """How states are tracked, as a user says it."""
        return f"extra_buffer{'_lazy' * self.lazy}" if self.tracked else "no_buffer"

    @property
    def more_arguments(self) -> dict[str, Any]:
        """What a server that drafts, or only prefills, is started with besides."""
        if self.transfer:
            return {"disaggregation_mode": "prefill"}
        if not self.drafts:
            return {}
        return {
            "speculative_algorithm": "EAGLE",
            "speculative_num_steps": self.drafts - 1,
            "speculative_eagle_topk": self.branches,
            "speculative_num_draft_tokens": self.drafts,
        }

    @property
    def takes_results(self) -> bool:
        """Whether decodes end as the release ends them, with the states that they track."""
        return self.lazy or self.drafts > 0

    @property
    def page(self) -> int:
        return 64 if self.tracked else 1


def state_pool(shape: Shape) -> Any:
    """The pool of rows and states, with states of two floats, of the published server."""
    widths = {
        "conv": [(2, 3)],
        "temporal": (1, 2, 2),
        "intermediate_size": 2,
        "conv_dim": 2,
        "ssm_state_size": 2,
        "num_heads": 1,
        "head_dim": 2,
        "state_size": 2,
        "conv_kernel": 4,
    }
    return request_pool(
        *(widths, [0], torch.float32, shape.rows, shape.slots),
        enable_mamba_extra_buffer=shape.tracked,
        max_context_len=shape.context + shape.page,
        enable_mamba_extra_buffer_lazy=shape.lazy,
    )


def prefix_params(shape: Shape, pool: Any, kv: Any) -> Any:
    options = {
        "disable": False,
        "enable_mamba_extra_buffer": shape.tracked,
        "enable_mamba_extra_buffer_lazy": shape.lazy,
        "is_eagle": shape.drafts > 0,
    }
    return cache_params(pool, kv, shape.page, **options)


def prefix_cache(shape: Shape, pool: Any, kv: Any) -> Any:
    params = prefix_params(shape, pool, kv)
    if shape.tree == "radix":
        return importlib.import_module(f"{MEMORY}.mamba_radix_cache").MambaRadixCache(params)
    return unified_cache(params, "FULL", "MAMBA")


def trees() -> tuple[str, ...]:
    """The prefix cache that the release makes for such models by default."""
    try:
        chooser = importlib.import_module(f"{MEMORY}.registry")
    except ModuleNotFoundError:
        chooser = importlib.import_module(f"{_MANAGERS}.scheduler")
    alone = " MambaRadixCache(params)" in inspect.getsource(chooser)
    return ("radix",) if alone else ("unified",)


_PUBLISHED: dict[str, Any] = {}


def arguments(shape: Shape) -> Any:
    """The release's own ServerArgs, published as a scheduler publishes it."""
    asked = (shape.strategy, shape.more_arguments)
    if _PUBLISHED.get("asked") != asked:
        _PUBLISHED.update(asked=asked, server_args=publish_shape(shape))
    return _PUBLISHED["server_args"]


def publish_shape(shape: Shape, **options: Any) -> Any:
    """The same anew, with further arguments."""
    return publish(
        shape.page,
        shape.strategy,
        chunked_prefill_size=shape.chunk,
        device="cpu",
        **options,
        **shape.more_arguments,
        **({"mamba_track_interval": 64} if shape.takes_results else {}),
    )


def schedule_batch(
    reqs: list[Any], pool: Any, kv: Any, tree: Any, vocabulary: int = VOCABULARY, **options: Any
) -> Any:
    return called(
        importlib.import_module(f"{_MANAGERS}.schedule_batch").ScheduleBatch.init_new,
        reqs=reqs,
        req_to_token_pool=pool,
        token_to_kv_pool_allocator=kv,
        tree_cache=tree,
        model_config=model_config(vocabulary),
        **{"spec_algorithm": speculation().NONE, **options},
    )


def model_config(vocabulary: int = VOCABULARY) -> Any:
    return NoneByDefault(
        vocab_size=vocabulary, hf_text_config=SimpleNamespace(), hf_config=SimpleNamespace()
    )


def scheduler(shape: Shape, pool: Any, kv: Any, tree: Any) -> Any:
    """The release's own ``Scheduler`` over these pools and this prefix cache."""
    module = importlib.import_module(f"{_MANAGERS}.scheduler")

    class Scheduler(module.Scheduler):  # type: ignore[misc, name-defined]
        """The release's, without what it starts; what it lacks is off."""

        def __init__(self, **own: Any) -> None:
            for name, value in own.items():
                setattr(self, name, value)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return None

        def get_num_allocatable_reqs(
            self, running: int, *_: Any, num_held_rows: int = 0, **__: Any
        ) -> int:
            most = int(self.max_running_requests) - running
            if self.disaggregation_mode.name == "PREFILL":  # those whose KV is sent hold rows
                most = min(most, self.req_to_token_pool.available_size() + num_held_rows)
            return most

    def nothing(*_: Any, **__: Any) -> None:
        """There is no policy."""

    modes = importlib.import_module("sglang.srt.disaggregation.utils").DisaggregationMode
    runner = NoneByDefault(attn_backend=SimpleNamespace(extend_attention_block_m=64))
    return Scheduler(
        server_args=arguments(shape),
        waiting_queue=[],
        grammar_manager=SimpleNamespace(has_waiting_grammars=lambda: False),
        policy=SimpleNamespace(calc_priority=nothing, shortest_prefill_chunk_limit=nothing),
        page_size=shape.page,
        tree_cache=tree,
        req_to_token_pool=pool,
        token_to_kv_pool_allocator=kv,
        new_token_ratio=0.5,
        new_token_ratio_tracker=SimpleNamespace(current=0.5),
        max_prefill_tokens=4 * shape.chunk,
        chunked_prefill_size=shape.chunk,
        priority_scheduling_preemption_threshold=0,
        max_prefill_bs=0,
        max_running_requests=shape.rows,
        tp_worker=NoneByDefault(model_runner=runner),
        model_config=model_config(),
        spec_algorithm=speculation()["EAGLE" if shape.drafts else "NONE"],
        disaggregation_mode=modes["PREFILL" if shape.transfer else "NULL"],
        load_inquirer=SimpleNamespace(_get_num_pending_tokens=lambda **_: 0),
        enable_overlap=False,
        device="cpu",
    )


@dataclass
class Launched:
    """A decode or verify that runs, while the results before it are taken."""

    batch: Any
    into: list[
        int
    ]  # of each request, the slot that tracks its state, if it tracks one in this step
    counts: dict[str, int] = field(default_factory=dict)  # its new tokens, if known by then
    claimed: dict[str, int] = field(default_factory=dict)  # those that the release counted before


def launched(batch: Any, drafts: int) -> Launched:
    batch.prepare_for_decode()
    tracks = batch.req_to_token_pool.enable_mamba_extra_buffer
    if drafts and tracks:
        utils = importlib.import_module("sglang.srt.speculative.spec_utils")
        utils.prepare_mamba_track_for_verify(batch)
    into = batch.mamba_track_indices.tolist() if tracks else [0] * len(batch.reqs)
    return Launched(batch.copy(), into)


def accepted(req: Any, tokens: int, drafts: int) -> int:
    """How many tokens a step yields: drawn from the request, so the same on both sides."""
    return zlib.crc32(f"{req.rid} {tokens}".encode()) % drafts + 1 if drafts else 1


def committed(req: Any) -> Any:
    """What counts the tokens of a request that have KV: the request, or its record."""
    return req if hasattr(req, "kv_committed_len") else req.kv


class Results:
    """What takes results: the release's own, without what it counts, streams and offloads."""

    def __init__(self, tree: Any, pool: Any) -> None:
        module = importlib.import_module(f"{_MANAGERS}.scheduler_components.batch_result_processor")
        kind = module.SchedulerBatchResultProcessor
        self._ended = importlib.import_module(f"{_MANAGERS}.schedule_batch").FINISH_LENGTH
        nothing = dict.fromkeys(each.name for each in dataclasses.fields(kind))
        own = {"model_config": model_config(), "tree_cache": tree, "req_to_token_pool": pool}
        read = {"server_args": NoneByDefault()} if "server_args" in nothing else {}
        self._own = kind(**{**nothing, **own, **read, "enable_overlap": False})

    def take(self, req: Any, launched: Launched, count: int, drafts: int) -> None:
        """Take a request's tokens of a step; it is released if it ends."""
        if drafts:
            committed(req).kv_committed_len += count
        req.output_ids.extend([5] * count)
        most = req.sampling_params.max_new_tokens
        if len(req.output_ids) >= most:
            req.finished_reason, req.finished_len = self._ended(length=most), most
        row = launched.batch.reqs.index(req)
        counts = [0] * len(launched.batch.reqs)
        counts[row] = count - 1
        result = NoneByDefault(
            num_correct_drafts_per_req_cpu=counts if drafts else None,
            num_non_draft_tokens_per_req=1,
        )
        self._own._handle_finish_state_updated_req(req, launched.batch, result, row, None)
